-- What each cluster's agent was told to be, and what it said of that. Texts are JSON of the protocol's types, empty where there is
-- none.
CREATE TABLE agent_updates (
    cluster_uid TEXT   NOT NULL PRIMARY KEY,
    -- In its desired state.
    settings    TEXT   NOT NULL,
    -- What to go back to.
    previous    TEXT   NOT NULL,
    -- Seconds since 1970.
    assigned    BIGINT NOT NULL,
    -- Digest of the settings that it went back from last, and why.
    failed      TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    -- What it said of itself last.
    report      TEXT   NOT NULL
);

-- Clusters whose identity two agents use: neither is answered until one has joined anew.
CREATE TABLE quarantines (
    cluster_uid TEXT   NOT NULL PRIMARY KEY,
    -- Seconds since 1970.
    since       BIGINT NOT NULL,
    -- Where the two run, as they said.
    hosts       TEXT   NOT NULL
);
