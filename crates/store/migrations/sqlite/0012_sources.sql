-- Services of several sources, and charts.

-- What a service needs beside the one source that its assignment names: whom a source that moves concerns. A service of one
-- Git repository has no row here.
CREATE TABLE service_sources (
    service_uid TEXT NOT NULL,
    -- Of a repository that no resource states, made from its address.
    source_uid  TEXT NOT NULL,
    -- Of a repository of charts; else both are empty.
    chart       TEXT NOT NULL,
    wanted      TEXT NOT NULL,
    -- Of a repository that no resource states; else both are empty.
    namespace   TEXT NOT NULL,
    url         TEXT NOT NULL,
    PRIMARY KEY (service_uid, source_uid, chart, wanted)
);
CREATE INDEX service_sources_source ON service_sources (source_uid);

-- What is served of each chart that somebody wants, whatever its repository says now.
CREATE TABLE charts (
    source_uid TEXT   NOT NULL,
    chart      TEXT   NOT NULL,
    -- A version or a range.
    wanted     TEXT   NOT NULL,
    -- These three are empty while nothing was ever found.
    version    TEXT   NOT NULL,
    digest     TEXT   NOT NULL,
    entry      TEXT   NOT NULL,
    -- Why nothing newer is served; empty where nothing is wrong.
    problem    TEXT   NOT NULL,
    -- Seconds since 1970.
    fetched    BIGINT NOT NULL,
    PRIMARY KEY (source_uid, chart, wanted)
);

-- How a bundle is made again that is of more than a folder at a commit: JSON of the hub's type.
CREATE TABLE bundle_recipes (
    content_id TEXT NOT NULL PRIMARY KEY,
    recipe     TEXT NOT NULL
);
