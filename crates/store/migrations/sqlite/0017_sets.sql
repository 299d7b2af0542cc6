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
    -- The generation of its service that the set has written last.
    generation   BIGINT NOT NULL DEFAULT 0,
    -- The change that it would run; empty: it is to be looked at, or can't be made.
    wanted       TEXT   NOT NULL DEFAULT '',
    -- What its sources had when that was found out.
    looked_at    TEXT   NOT NULL DEFAULT '',
    -- JSON: why it stands still, beside the rollout; empty: it does not.
    stands       TEXT   NOT NULL DEFAULT '',
    -- JSON: what it is released for, and what became of that.
    track        TEXT   NOT NULL DEFAULT '{}',
    -- JSON: the spec that counts as long as a newer one waits for its turn; empty: the service's own.
    held_spec    TEXT   NOT NULL DEFAULT '',
    -- JSON: the spec before that one, to go back to; empty: the service's own.
    back_spec    TEXT   NOT NULL DEFAULT '',
    -- JSON: the entry that its agent is handed, and the change that it is made of.
    published    TEXT   NOT NULL DEFAULT '',
    -- Seconds since 1970.
    published_at BIGINT NOT NULL DEFAULT 0,
    -- JSON: what its agent says of an entry.
    evidence     TEXT   NOT NULL DEFAULT '',
    -- The step of the rollout that it is of; 0: it is a canary; -1: nobody has said.
    step         BIGINT NOT NULL DEFAULT -1,
    PRIMARY KEY (set_uid, cluster_uid)
);
CREATE INDEX set_members_cluster ON set_members (cluster_uid);
CREATE INDEX set_members_service ON set_members (service_uid);
CREATE INDEX set_members_name ON set_members (service_name);

-- How far the rollout of a set has come.
CREATE TABLE rollouts (
    set_uid TEXT NOT NULL PRIMARY KEY,
    -- JSON.
    state   TEXT NOT NULL
);
