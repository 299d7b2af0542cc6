-- Parameters of a set's services wait for their rollout, as content and template do. The documents lie sealed in `kept_values`.

-- JSON: MACs of the document that counts, and of those that went with changes that the member may go back to; empty: its newest counts.
ALTER TABLE set_members ADD COLUMN documents TEXT NOT NULL DEFAULT '';
-- MAC of the document that it was looked at with, where others have a say in that; empty: they have none, or it can't be made.
ALTER TABLE set_members ADD COLUMN looked_mac TEXT NOT NULL DEFAULT '';
