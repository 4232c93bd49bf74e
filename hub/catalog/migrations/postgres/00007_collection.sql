-- +goose Up
-- Collection frees what no image needs any more.

-- Since when no image has the tree, as far as that is known; 0: one has it, or nobody has looked yet.
ALTER TABLE trees ADD COLUMN dead BIGINT NOT NULL DEFAULT 0;

-- Locations that name units in which chunks no longer are, or were stored once more.
-- 1: they may name rewritten packs; 2: any pack; 0: they name neither.
ALTER TABLE layouts ADD COLUMN moved BIGINT NOT NULL DEFAULT 0;
CREATE INDEX layouts_moved ON layouts (tree) WHERE moved > 0;

-- Packs whose units were copied into other packs. They are kept for nodes with older locations.
CREATE TABLE rewritten_packs (
	id      BYTEA PRIMARY KEY,
	size    BIGINT NOT NULL,
	retired BIGINT NOT NULL -- since when no locations name it; 0: some may
);

CREATE INDEX chunks_unit ON chunks (unit);
CREATE INDEX units_pack ON units (pack);
CREATE INDEX chains_diff_id ON chains (diff_id);
CREATE INDEX blobs_diff_id ON blobs (diff_id);

-- Counts the removals of rows that a publication may refer to.
INSERT INTO meta VALUES ('collections', '0');
UPDATE meta SET value = '7' WHERE name = 'oldest';
