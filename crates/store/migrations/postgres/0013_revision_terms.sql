-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What of a source's served revision is read and was looked at before it was served, where that is more than its own files.
CREATE TABLE revision_terms (
    source_uid TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- JSON of the store's type.
    terms      TEXT COLLATE "C" NOT NULL
);
