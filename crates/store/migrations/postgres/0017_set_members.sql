-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Clusters of ServiceSets, and which ServiceDeployment each has: what a set owns is what is written here.
CREATE TABLE set_members (
    set_uid      TEXT COLLATE "C"   NOT NULL,
    cluster_uid  TEXT COLLATE "C"   NOT NULL,
    -- Of the ServiceDeployment; empty: there is none.
    service_uid  TEXT COLLATE "C"   NOT NULL,
    service_name TEXT COLLATE "C"   NOT NULL,
    -- Why it can't be what it should be; empty: it is.
    problem      TEXT COLLATE "C"   NOT NULL,
    -- Whether the service is healthy at what is assigned to it: 0 or 1.
    ready        BIGINT NOT NULL,
    -- Since when the selector finds the cluster no more, in seconds since 1970; 0: it does.
    left_at      BIGINT NOT NULL,
    -- Whether it was among too many at once, so that an administrator decides: 0 or 1.
    braked       BIGINT NOT NULL,
    PRIMARY KEY (set_uid, cluster_uid)
);
CREATE INDEX set_members_cluster ON set_members (cluster_uid);
CREATE INDEX set_members_service ON set_members (service_uid);
CREATE INDEX set_members_name ON set_members (service_name);
