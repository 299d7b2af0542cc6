-- How many resources of a kind are in which state, kept by the transaction that changes one: whoever counts a million reads
-- a few rows. Meta 'tallied' says by which rules; where those are others now, the next start counts anew.
CREATE TABLE tallies (
    kind   TEXT   NOT NULL,
    state  TEXT   NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (kind, state)
);
