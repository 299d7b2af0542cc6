-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What the hub knows of agents' keys beside those of today, which stand in `agents`. A row is missing until there is something to say.
CREATE TABLE agent_keys (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- When today's keys were first used. Seconds since 1970.
    since       BIGINT NOT NULL,
    -- Ed25519 and X25519 public keys that the agent may go over to; empty: none.
    next_key    BYTEA   NOT NULL,
    next_sealing_key BYTEA NOT NULL,
    -- The Ed25519 key before today's: it is good for nothing and known by sight. Empty: none.
    former_key  BYTEA   NOT NULL,
    -- Digest of the request for new keys that was met last.
    request     TEXT COLLATE "C"   NOT NULL,
    -- How far the agent has followed the hub's successions, and the digest of the last.
    sequence    BIGINT NOT NULL,
    link        TEXT COLLATE "C"   NOT NULL
);
