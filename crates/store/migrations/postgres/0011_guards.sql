-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Services whose prune is held, so that many at once are noticed.
CREATE TABLE prune_holds (
    service_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- Seconds since 1970; 0: it doesn't count any more.
    since       BIGINT NOT NULL
);
CREATE INDEX prune_holds_since ON prune_holds (since);

-- Services that went while their cluster's agent was silent: it lets go of their objects when it is back.
CREATE TABLE released_services (
    service_uid TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    cluster_uid TEXT COLLATE "C" NOT NULL,
    namespace   TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL
);
CREATE INDEX released_services_cluster ON released_services (cluster_uid);
