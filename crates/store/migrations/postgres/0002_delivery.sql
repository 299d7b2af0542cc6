-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Delivery: what lies between a source that moves and an agent that polls. Narrow rows beside the resources; all of
-- them are keyed by uids, so that something made again under an old name inherits nothing.

-- The revision of each source that is served, whatever its remote says now.
CREATE TABLE revisions (
    source_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- The branch or tag that was followed; empty for a commit.
    reference  TEXT COLLATE "C"   NOT NULL,
    commit_id  TEXT COLLATE "C"   NOT NULL,
    -- Seconds since 1970.
    fetched    BIGINT NOT NULL
);

-- Made once per content; source, commit and path say how to make the archive again.
CREATE TABLE bundles (
    content_id TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    digest     TEXT COLLATE "C"   NOT NULL,
    bytes      BIGINT NOT NULL,
    source_uid TEXT COLLATE "C"   NOT NULL,
    commit_id  TEXT COLLATE "C"   NOT NULL,
    path       TEXT COLLATE "C"   NOT NULL
);
CREATE INDEX bundles_digest ON bundles (digest);

-- One row per service. Texts of candidate, assigned and why are JSON of fleet's types.
CREATE TABLE assignments (
    service_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    namespace   TEXT COLLATE "C"   NOT NULL,
    name        TEXT COLLATE "C"   NOT NULL,
    -- Empty while the reference points to nothing.
    cluster_uid TEXT COLLATE "C"   NOT NULL,
    source_uid  TEXT COLLATE "C"   NOT NULL,
    -- The generation of the service that this row was made for.
    generation  BIGINT NOT NULL,
    -- What of the service its entry was made from: a write that leaves it the same (a status) marks no cluster.
    stamp       TEXT COLLATE "C"   NOT NULL,
    candidate   TEXT COLLATE "C",
    assigned    TEXT COLLATE "C",
    why         TEXT COLLATE "C"   NOT NULL
);
CREATE INDEX assignments_cluster ON assignments (cluster_uid);
CREATE INDEX assignments_source ON assignments (source_uid);
CREATE INDEX assignments_namespace ON assignments (namespace);

-- Which services a Secret is part of: whom its change concerns.
CREATE TABLE service_secrets (
    service_uid TEXT COLLATE "C" NOT NULL,
    -- Of the service and the Secret.
    namespace   TEXT COLLATE "C" NOT NULL,
    secret      TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (service_uid, secret)
);
CREATE INDEX service_secrets_secret ON service_secrets (namespace, secret);

-- The signed desired state of each cluster. `body` is the entries' JSON, zstd-compressed.
CREATE TABLE desired (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    epoch       BIGINT NOT NULL,
    generation  BIGINT NOT NULL,
    tag         TEXT COLLATE "C"   NOT NULL,
    key_id      TEXT COLLATE "C"   NOT NULL,
    signature   TEXT COLLATE "C"   NOT NULL,
    body        BYTEA   NOT NULL
);

-- Which bundles a cluster may fetch: those that its desired state names.
CREATE TABLE desired_bundles (
    cluster_uid TEXT COLLATE "C" NOT NULL,
    digest      TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (cluster_uid, digest)
);

-- Clusters whose desired state may be out of date, marked by the transaction that changed an input.
CREATE TABLE dirty (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- Counts marks: one that is made during a recomputation is not lost with it.
    marks       BIGINT NOT NULL
);

CREATE TABLE agents (
    cluster_uid        TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    -- Ed25519 and X25519 public keys.
    public_key         BYTEA   NOT NULL,
    sealing_key        BYTEA   NOT NULL,
    -- uid of the cluster's kube-system namespace.
    cluster_id         TEXT COLLATE "C"   NOT NULL,
    agent_version      TEXT COLLATE "C"   NOT NULL,
    kubernetes_version TEXT COLLATE "C"   NOT NULL,
    joined             BIGINT NOT NULL,
    -- The last report's sequence; 0 before the first.
    report_sequence    BIGINT NOT NULL,
    -- The epoch that was raised because the agent proved this database older than itself; 0 if nothing waits for a
    -- confirmation.
    restored_epoch     BIGINT NOT NULL
);
CREATE UNIQUE INDEX agents_cluster_id ON agents (cluster_id);

-- By sha256: the token itself is nowhere.
CREATE TABLE join_tokens (
    hash        BYTEA   NOT NULL PRIMARY KEY,
    cluster_uid TEXT COLLATE "C"   NOT NULL,
    expires     BIGINT NOT NULL,
    used        BIGINT
);

-- Assertions that were used, until they expire: across restarts, or a recorded one could be used again after one.
CREATE TABLE nonces (
    cluster_uid TEXT COLLATE "C"   NOT NULL,
    nonce       TEXT COLLATE "C"   NOT NULL,
    expires     BIGINT NOT NULL,
    PRIMARY KEY (cluster_uid, nonce)
);

-- What agents said last, one row per service: the JSON of a report, zstd-compressed.
CREATE TABLE reports (
    service_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    cluster_uid TEXT COLLATE "C"   NOT NULL,
    received    BIGINT NOT NULL,
    body        BYTEA   NOT NULL
);
CREATE INDEX reports_cluster ON reports (cluster_uid);

CREATE TABLE heartbeats (
    cluster_uid TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    heard       BIGINT NOT NULL
);
