-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- Of a large set most members are at rest: a look at the set counts them, and reads the others.

-- How it rests, by the last look at its set: 0: it does not; 1: it is done; 2: its cluster is silent. Whoever writes what a look reads
-- of it makes it 0.
ALTER TABLE set_members ADD COLUMN rests BIGINT NOT NULL DEFAULT 0;
-- How often that was written: a look lets it rest only as it was read.
ALTER TABLE set_members ADD COLUMN changes BIGINT NOT NULL DEFAULT 0;
CREATE INDEX set_members_rests ON set_members (set_uid, left_at, rests, step, ready);
CREATE INDEX set_members_problem ON set_members (set_uid, left_at, ready) WHERE problem <> '';
