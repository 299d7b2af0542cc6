-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- How many resources of a kind are in which state, kept by the transaction that changes one: whoever counts a million reads
-- a few rows. Meta 'tallied' says by which rules; where those are others now, the next start counts anew.
CREATE TABLE tallies (
    kind   TEXT COLLATE "C"   NOT NULL,
    state  TEXT COLLATE "C"   NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (kind, state)
);
