-- +goose Up
-- The name of the tree's image that was removed last; empty: none was, or by a release that did not
-- record it.
ALTER TABLE trees ADD COLUMN last_name TEXT NOT NULL DEFAULT '';
