-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What notification providers are told: of each thread the newest that waits, and what was told last.
CREATE TABLE threads (
    provider_uid TEXT COLLATE "C"   NOT NULL,
    thread       TEXT COLLATE "C"   NOT NULL,
    -- JSON: what is to be told; empty: nothing.
    waiting      TEXT COLLATE "C"   NOT NULL,
    -- Counts what was to be told, and so names it.
    version      BIGINT NOT NULL,
    -- Milliseconds since 1970: since when something waits, and before which it is not sent.
    since        BIGINT NOT NULL,
    due          BIGINT NOT NULL,
    -- JSON: what was told last; empty: nothing yet.
    told         TEXT COLLATE "C"   NOT NULL,
    -- Milliseconds since 1970.
    told_at      BIGINT NOT NULL,
    -- What the provider calls the thread's message; empty: nothing, or it can't be edited.
    remote       TEXT COLLATE "C"   NOT NULL,
    PRIMARY KEY (provider_uid, thread)
);
