-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What each cluster's agent was told to be, and what it said of that. Texts are JSON of the protocol's types, empty where there is
-- none.
CREATE TABLE agent_updates (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- In its desired state.
    settings    TEXT COLLATE "C"   NOT NULL,
    -- What to go back to.
    previous    TEXT COLLATE "C"   NOT NULL,
    -- Seconds since 1970.
    assigned    BIGINT NOT NULL,
    -- Digest of the settings that it went back from last, and why.
    failed      TEXT COLLATE "C"   NOT NULL,
    reason      TEXT COLLATE "C"   NOT NULL,
    -- What it said of itself last.
    report      TEXT COLLATE "C"   NOT NULL
);

-- Clusters whose identity two agents use: neither is answered until one has joined anew.
CREATE TABLE quarantines (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- Seconds since 1970.
    since       BIGINT NOT NULL,
    -- Where the two run, as they said.
    hosts       TEXT COLLATE "C"   NOT NULL
);
