-- Clusters of ServiceSets, and which ServiceDeployment each has: what a set owns is what is written here.
CREATE TABLE set_members (
    set_uid      TEXT   NOT NULL,
    cluster_uid  TEXT   NOT NULL,
    -- Of the ServiceDeployment; empty: there is none.
    service_uid  TEXT   NOT NULL,
    service_name TEXT   NOT NULL,
    -- Why it can't be what it should be; empty: it is.
    problem      TEXT   NOT NULL,
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
