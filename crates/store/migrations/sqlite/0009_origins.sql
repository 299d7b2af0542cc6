-- Which repository each source is, and which one each service's objects came from: what is missing from another one was not
-- deleted by anybody.

CREATE TABLE origins (
    source_uid TEXT   NOT NULL PRIMARY KEY,
    -- The first commit of the served revision's history; empty while that isn't known.
    root       TEXT   NOT NULL,
    -- The served commit that this was found for.
    commit_id  TEXT   NOT NULL,
    -- 1: the database was restored, and the source has not been asked since.
    unasked    BIGINT NOT NULL
);

CREATE TABLE service_origins (
    service_uid TEXT   NOT NULL PRIMARY KEY,
    -- Where its objects came from when nothing was left to prune: JSON of fleet's type, empty before the first time.
    origin      TEXT   NOT NULL,
    -- 1: the database was restored, and what the source has since is not assigned yet.
    unasked     BIGINT NOT NULL
);
