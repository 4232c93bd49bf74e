-- +goose Up
-- Lists of images of other registries that the hub keeps.
CREATE TABLE wishlists (
	name       TEXT PRIMARY KEY,
	definition TEXT NOT NULL,   -- JSON; empty: the hub's configuration has the list
	result     BYTEA NOT NULL, -- JSON: what the hub has made of the list, when it read it last
	cache      BYTEA NOT NULL  -- JSON: the last contents of its URLs
);
