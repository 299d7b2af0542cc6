-- What of a source's served revision is read and was looked at before it was served, where that is more than its own files.
CREATE TABLE revision_terms (
    source_uid TEXT NOT NULL PRIMARY KEY,
    -- JSON of the store's type.
    terms      TEXT NOT NULL
);
