-- +goose Up
-- The name of the tree's image that was removed last; empty: none was, or by a release that did not
-- record it.
ALTER TABLE trees ADD COLUMN last_name TEXT NOT NULL DEFAULT '';

-- Startup packs that several trees had, all of which one transaction removed, never retired.
UPDATE startup_packs SET retired = 1 WHERE retired = 0
	AND NOT EXISTS (SELECT 1 FROM startups WHERE startups.pack = startup_packs.id);
