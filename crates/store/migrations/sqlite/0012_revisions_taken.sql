-- What of a revision is read and was looked at before it was served: JSON of the store's type. Empty: its own files, and nothing.
ALTER TABLE revisions ADD COLUMN taken TEXT NOT NULL DEFAULT '';
