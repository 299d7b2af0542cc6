-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What people state and a bounded summary, one row for each resource.
-- `body` is the object without status and without resourceVersion, so that equal content is equal bytes.
-- Rows with sealed = 1 hold nothing plain but their key: body, status and labels are sealed.
CREATE TABLE resources (
    kind      TEXT COLLATE "C"     NOT NULL,
    namespace TEXT COLLATE "C"     NOT NULL,
    name      TEXT COLLATE "C"     NOT NULL,
    uid       TEXT COLLATE "C"     NOT NULL,
    version   BIGINT   NOT NULL,
    sealed    SMALLINT NOT NULL,
    -- JSON object; '{}' in sealed rows, whose labels lie in `body`.
    labels    TEXT COLLATE "C"     NOT NULL,
    body      BYTEA     NOT NULL,
    status    BYTEA,
    PRIMARY KEY (kind, namespace, name)
);

-- The one number that orders all writes. A row, not a sequence: its lock is held until commit, so numbers become
-- visible in order.
CREATE TABLE counter (
    id    SMALLINT NOT NULL PRIMARY KEY CHECK (id = 1),
    value BIGINT   NOT NULL CHECK (value >= 0)
);
INSERT INTO counter (id, value) VALUES (1, 0);

-- What watchers are shown. Rows leave from the oldest; meta 'compacted' is the newest version that has left.
CREATE TABLE changes (
    version    BIGINT   NOT NULL PRIMARY KEY,
    kind       TEXT COLLATE "C"     NOT NULL,
    namespace  TEXT COLLATE "C"     NOT NULL,
    name       TEXT COLLATE "C"     NOT NULL,
    uid        TEXT COLLATE "C"     NOT NULL,
    operation  SMALLINT NOT NULL,
    sealed     SMALLINT NOT NULL,
    -- Seconds since 1970. Before the large columns: compaction reads it without their pages.
    written    BIGINT   NOT NULL,
    old_labels BYTEA     NOT NULL,
    body       BYTEA     NOT NULL,
    status     BYTEA
);

CREATE TABLE meta (
    name  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    value TEXT COLLATE "C" NOT NULL
);

-- Tokens of people and programs, by sha256: the token itself is nowhere.
CREATE TABLE api_tokens (
    hash            BYTEA   NOT NULL PRIMARY KEY,
    user_name       TEXT COLLATE "C"   NOT NULL,
    user_uid        TEXT COLLATE "C"   NOT NULL,
    user_groups     TEXT COLLATE "C"   NOT NULL,
    -- JSON of the object whose deletion ends the token.
    bound_object    TEXT COLLATE "C",
    bound_uid       TEXT COLLATE "C",
    created         BIGINT NOT NULL,
    expires         BIGINT
);
CREATE INDEX api_tokens_bound_uid ON api_tokens (bound_uid);
CREATE INDEX api_tokens_expires ON api_tokens (expires);
