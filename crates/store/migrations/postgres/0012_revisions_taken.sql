-- Made from ../sqlite by a test of migrations.rs; don't edit.
-- What of a revision is read and was looked at before it was served: JSON of the store's type. Empty: its own files, and nothing.
ALTER TABLE revisions ADD COLUMN taken TEXT COLLATE "C" NOT NULL DEFAULT '';
