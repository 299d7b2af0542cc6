-- How far the rollout of a set has come with each of its members.
-- The generation of its service that was written last.
ALTER TABLE set_members ADD COLUMN generation BIGINT NOT NULL DEFAULT 0;
-- The change that the member would run; empty: it is to be looked at, or can't be made.
ALTER TABLE set_members ADD COLUMN wanted TEXT NOT NULL DEFAULT '';
-- What its sources had when it was looked at.
ALTER TABLE set_members ADD COLUMN looked_at TEXT NOT NULL DEFAULT '';
-- JSON: why it stands still, beside the rollout; empty: it does not.
ALTER TABLE set_members ADD COLUMN stands TEXT NOT NULL DEFAULT '';
-- JSON: what it is released for, and what became of that.
ALTER TABLE set_members ADD COLUMN track TEXT NOT NULL DEFAULT '{}';
-- JSON: the spec that counts as long as a newer one waits for its turn; empty: the service's own.
ALTER TABLE set_members ADD COLUMN held_spec TEXT NOT NULL DEFAULT '';
-- JSON: the spec before that one, to go back to; empty: the service's own.
ALTER TABLE set_members ADD COLUMN back_spec TEXT NOT NULL DEFAULT '';
-- JSON: the entry that its agent is handed, and the change that it is made of.
ALTER TABLE set_members ADD COLUMN published TEXT NOT NULL DEFAULT '';
-- Seconds since 1970.
ALTER TABLE set_members ADD COLUMN published_at BIGINT NOT NULL DEFAULT 0;
-- JSON: what its agent says of an entry.
ALTER TABLE set_members ADD COLUMN evidence TEXT NOT NULL DEFAULT '';
-- The step of the rollout that it is of; 0: it is a canary; -1: nobody has said.
ALTER TABLE set_members ADD COLUMN step BIGINT NOT NULL DEFAULT -1;

CREATE TABLE rollouts (
    set_uid TEXT NOT NULL PRIMARY KEY,
    -- JSON.
    state   TEXT NOT NULL
);
