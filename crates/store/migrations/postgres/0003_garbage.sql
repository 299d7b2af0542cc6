-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Which resources name which as their owner: one row for each reference. Resources without owners have none, so that they
-- cost nothing. The owner may not exist. Written by the transaction that writes the dependent.
CREATE TABLE owner_references (
    owner_uid TEXT COLLATE "C"     NOT NULL,
    -- The dependent's key.
    kind      TEXT COLLATE "C"     NOT NULL,
    namespace TEXT COLLATE "C"     NOT NULL,
    name      TEXT COLLATE "C"     NOT NULL,
    -- 1 where the owner, deleted in the foreground, waits for this dependent (blockOwnerDeletion).
    blocks    SMALLINT NOT NULL,
    PRIMARY KEY (owner_uid, kind, namespace, name)
);

-- What the garbage collector has yet to look at, marked by the transaction that gave the reason: a dependent whose
-- references changed, an owner that went or that waits for its dependents. So a collector that was killed goes on
-- where it was, and none has to read all rows at its start.
CREATE TABLE garbage (
    uid       TEXT COLLATE "C"   NOT NULL PRIMARY KEY,
    kind      TEXT COLLATE "C"   NOT NULL,
    namespace TEXT COLLATE "C"   NOT NULL,
    name      TEXT COLLATE "C"   NOT NULL,
    -- Counts marks: one that is made while the row is worked on is not lost with it.
    marks     BIGINT NOT NULL
);
