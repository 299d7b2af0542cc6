-- Hooks and tests of the versions that history has, with what their containers left behind.
CREATE TABLE hook_runs (
    service_uid TEXT   NOT NULL,
    -- As in history.
    number      BIGINT NOT NULL,
    -- Phase and object: of a hook that was run again the last run counts.
    hook        TEXT   NOT NULL,
    -- Digest that names the run.
    run         TEXT   NOT NULL,
    -- JSON of api's type, zstd.
    body        BLOB   NOT NULL,
    PRIMARY KEY (service_uid, number, hook)
);
