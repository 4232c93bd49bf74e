-- +goose Up
-- The last number that a row of a table got. Numbers are never used again: deleted chunks must not
-- lend theirs to others, and work on a removed image must not be taken for work on another one.
CREATE TABLE numbers (
	name TEXT PRIMARY KEY, -- of the table
	last BIGINT NOT NULL
);
INSERT INTO numbers SELECT 'chunks', COALESCE(MAX(n), 0) FROM chunks;
INSERT INTO numbers SELECT 'packs', COALESCE(MAX(n), 0) FROM packs;
INSERT INTO numbers SELECT 'units', COALESCE(MAX(n), 0) FROM units;
INSERT INTO numbers SELECT 'traces', COALESCE(MAX(n), 0) FROM traces;
INSERT INTO numbers SELECT 'images', COALESCE(MAX(CAST(value AS BIGINT)), 0) FROM meta WHERE name = 'images';
DELETE FROM meta WHERE name = 'images';
INSERT INTO meta VALUES ('oldest', '3');
