-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Services of several sources, and charts.

-- What a service needs beside the one source that its assignment names: whom a source that moves concerns. A service of one
-- Git repository has no row here.
CREATE TABLE service_sources (
    service_uid TEXT COLLATE "C" NOT NULL,
    -- Of a repository that no resource states, made from its address.
    source_uid  TEXT COLLATE "C" NOT NULL,
    -- Of a repository of charts; else both are empty.
    chart       TEXT COLLATE "C" NOT NULL,
    wanted      TEXT COLLATE "C" NOT NULL,
    -- Of a repository that no resource states; else both are empty.
    namespace   TEXT COLLATE "C" NOT NULL,
    url         TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (service_uid, source_uid, chart, wanted)
);
CREATE INDEX service_sources_source ON service_sources (source_uid);

-- What is served of each chart that somebody wants, whatever its repository says now.
CREATE TABLE charts (
    source_uid TEXT COLLATE "C"   NOT NULL,
    chart      TEXT COLLATE "C"   NOT NULL,
    -- A version or a range.
    wanted     TEXT COLLATE "C"   NOT NULL,
    -- These three are empty while nothing was ever found.
    version    TEXT COLLATE "C"   NOT NULL,
    digest     TEXT COLLATE "C"   NOT NULL,
    entry      TEXT COLLATE "C"   NOT NULL,
    -- Why nothing newer is served; empty where nothing is wrong.
    problem    TEXT COLLATE "C"   NOT NULL,
    -- Seconds since 1970.
    fetched    BIGINT NOT NULL,
    PRIMARY KEY (source_uid, chart, wanted)
);

-- How a bundle is made again that is of more than a folder at a commit: JSON of the hub's type.
CREATE TABLE bundle_recipes (
    content_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    recipe     TEXT COLLATE "C" NOT NULL
);
