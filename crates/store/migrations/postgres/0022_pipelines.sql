-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What each Pipeline has promoted to its stages, and what is known of these.
CREATE TABLE pipelines (
    pipeline_uid TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- JSON: of each stage what was proven in the one before, who has approved it, and what was promoted.
    state        TEXT COLLATE "C" NOT NULL
);
