-- What each rollout of a set was about, and what people have said of it: a set can be kept at one of them.

-- The version that a set is kept at; 0: none, it follows its sources and its template.
ALTER TABLE rollouts ADD COLUMN pin BIGINT NOT NULL DEFAULT 0;
-- The one that its service was looked at for.
ALTER TABLE set_members ADD COLUMN pin BIGINT NOT NULL DEFAULT 0;

CREATE TABLE set_versions (
    set_uid TEXT   NOT NULL,
    -- Of the rollout.
    number  BIGINT NOT NULL,
    -- JSON.
    version TEXT   NOT NULL,
    PRIMARY KEY (set_uid, number)
);
