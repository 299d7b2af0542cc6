-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What was assigned to each service, the newest versions of it: what a rollback can go back to.
CREATE TABLE history (
    service_uid TEXT COLLATE "C"   NOT NULL,
    -- Counts up for each service.
    number      BIGINT NOT NULL,
    bundle      TEXT COLLATE "C"   NOT NULL,
    -- JSON of fleet's type.
    version     TEXT COLLATE "C"   NOT NULL,
    PRIMARY KEY (service_uid, number)
);
-- Bundles that history names are kept.
CREATE INDEX history_bundle ON history (bundle);

-- Which services a service depends on: whom a change of one concerns.
CREATE TABLE service_dependencies (
    service_uid TEXT COLLATE "C" NOT NULL,
    -- Of both.
    namespace   TEXT COLLATE "C" NOT NULL,
    dependency  TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (service_uid, dependency)
);
CREATE INDEX service_dependencies_dependency ON service_dependencies (namespace, dependency);
