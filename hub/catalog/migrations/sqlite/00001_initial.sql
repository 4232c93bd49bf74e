-- +goose Up

-- Hubs built before there were migrations recorded their schema in meta. Schema 3 is this one, so
-- for such a catalog this migration only removes the record. Other schemas were never released.
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE schemas (version TEXT NOT NULL CONSTRAINT catalog_is_of_an_unreleased_version CHECK (version = '3'));
INSERT INTO schemas SELECT value FROM meta WHERE name = 'schema';
DROP TABLE schemas;
DELETE FROM meta WHERE name = 'schema';

-- The catalog assigns the numbers (n). They are dense and rise, so that a set of chunks is stored as
-- a few runs. Times are milliseconds since 1970. A row is inserted after the object that it names was
-- stored.

-- A name in the registry refers to a manifest or to an index (root). Each manifest below an index is
-- one image.
CREATE TABLE IF NOT EXISTS images (
	n        INTEGER PRIMARY KEY,
	name     TEXT NOT NULL,
	root     TEXT NOT NULL,
	digest   TEXT NOT NULL,
	platform TEXT NOT NULL,
	state    TEXT NOT NULL,
	error    TEXT NOT NULL,
	size     BIGINT NOT NULL,
	turn     BIGINT NOT NULL, -- place in the queue, while it is queued
	tries    BIGINT NOT NULL, -- ingestions begun since it was queued
	updated  BIGINT NOT NULL,
	UNIQUE (name, digest)
);
CREATE INDEX IF NOT EXISTS images_state ON images (state, turn);
CREATE INDEX IF NOT EXISTS images_digest ON images (digest);

-- The repositories of other registries from which images were copied.
CREATE TABLE IF NOT EXISTS image_sources (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	repository TEXT NOT NULL, -- HOST[:PORT]/PATH
	PRIMARY KEY (image, repository)
);

-- The blobs of ready images.
CREATE TABLE IF NOT EXISTS image_blobs (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	position   BIGINT NOT NULL, -- of a layer, from 0 for the lowest; -1: the config
	chain      TEXT NOT NULL,   -- of a layer
	digest     TEXT NOT NULL,
	media_type TEXT NOT NULL,
	size       BIGINT NOT NULL,
	PRIMARY KEY (image, position)
);
CREATE INDEX IF NOT EXISTS image_blobs_chain ON image_blobs (chain);

-- The bytes that only one image has. They are derived from the other tables.
CREATE TABLE IF NOT EXISTS image_sizes (
	digest TEXT PRIMARY KEY, -- images with the same digest count as one
	alone  BLOB NOT NULL,    -- numbers of the chunks that no other image has, as runs
	plain  BIGINT NOT NULL,  -- bytes of these chunks
	stored BIGINT NOT NULL,
	blobs  BIGINT NOT NULL   -- bytes of the blobs that no other image has
);

CREATE TABLE IF NOT EXISTS layers (
	diff_id TEXT PRIMARY KEY,
	bytes   BIGINT NOT NULL, -- of the tar stream
	entries BIGINT NOT NULL,
	chunks  BLOB NOT NULL    -- numbers of its chunks, as runs
);

-- Compressed layers, by the layer to which they were seen to decompress.
CREATE TABLE IF NOT EXISTS blobs (
	digest  TEXT PRIMARY KEY,
	diff_id TEXT NOT NULL REFERENCES layers (diff_id)
);

CREATE TABLE IF NOT EXISTS chains (
	chain   TEXT PRIMARY KEY,
	parent  TEXT NOT NULL, -- empty for the lowest
	diff_id TEXT NOT NULL REFERENCES layers (diff_id)
);
CREATE INDEX IF NOT EXISTS chains_parent ON chains (parent);

CREATE TABLE IF NOT EXISTS trees (
	tree        BLOB PRIMARY KEY,
	files       BIGINT NOT NULL,
	bytes       BIGINT NOT NULL, -- of all files, plain
	chunks      BIGINT NOT NULL, -- distinct ones
	packs       BIGINT NOT NULL,
	units       BIGINT NOT NULL,
	index_bytes BIGINT NOT NULL, -- plain
	index_wire  BIGINT NOT NULL  -- compressed
);

CREATE TABLE IF NOT EXISTS statements (
	chain     TEXT NOT NULL REFERENCES chains (chain),
	format    BIGINT NOT NULL,
	tree      BLOB NOT NULL REFERENCES trees (tree),
	signature BLOB NOT NULL, -- 64 bytes for each of the keys in meta, in their order
	PRIMARY KEY (chain, format)
);
CREATE INDEX IF NOT EXISTS statements_tree ON statements (tree);

CREATE TABLE IF NOT EXISTS packs (
	n    INTEGER PRIMARY KEY,
	id   BLOB NOT NULL UNIQUE,
	size BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS units (
	n      INTEGER PRIMARY KEY,
	pack   BIGINT NOT NULL REFERENCES packs (n),
	place  BIGINT NOT NULL, -- in the pack, from 0
	plain  BIGINT NOT NULL, -- bytes
	stored BIGINT NOT NULL  -- bytes
);

CREATE TABLE IF NOT EXISTS chunks (
	n      INTEGER PRIMARY KEY,
	id     BLOB NOT NULL UNIQUE,
	length BIGINT NOT NULL,
	unit   BIGINT NOT NULL
);

-- What the hub knows about how images start. All of it is a hint: without it images start more
-- slowly.

-- The locations and startup packs of each tree.
CREATE TABLE IF NOT EXISTS layouts (
	tree      BLOB PRIMARY KEY REFERENCES trees (tree),
	locations BLOB NOT NULL,   -- digest that names the object
	wire      BIGINT NOT NULL, -- its length
	startup   BLOB NOT NULL,   -- digest of the layout, and one more byte if it is recompressed; empty: no startup packs
	due       BIGINT NOT NULL, -- when to make the layout again; 0: never
	changes   BIGINT NOT NULL, -- counts the reasons to make it again
	tries     BIGINT NOT NULL, -- attempts since the last reason that did not succeed
	unserved  BIGINT NOT NULL, -- when it was first found that no ready image has the tree; 0: one has it
	used      BIGINT NOT NULL DEFAULT 0, -- when a node last asked for the locations or reported a start
	lost      BIGINT NOT NULL DEFAULT 0  -- since when the tree has no startup packs for lack of room; 0: it may have some
);
CREATE INDEX IF NOT EXISTS layouts_due ON layouts (due) WHERE due > 0;

-- Packs whose chunks are also in other packs.
CREATE TABLE IF NOT EXISTS startup_packs (
	id      BLOB PRIMARY KEY,
	size    BIGINT NOT NULL,
	retired BIGINT NOT NULL -- since when no tree has it; 0: one has it
);

CREATE TABLE IF NOT EXISTS startups (
	tree     BLOB NOT NULL REFERENCES layouts (tree),
	position BIGINT NOT NULL,
	pack     BLOB NOT NULL REFERENCES startup_packs (id),
	PRIMARY KEY (tree, position)
);
CREATE INDEX IF NOT EXISTS startups_pack ON startups (pack);

-- Reported traces that are not merged yet.
CREATE TABLE IF NOT EXISTS traces (
	n    INTEGER PRIMARY KEY,
	tree BLOB NOT NULL REFERENCES layouts (tree),
	raw  BIGINT NOT NULL, -- 1: a node's trace; 0: imported recordings
	body BLOB NOT NULL,   -- compressed
	sender TEXT NOT NULL DEFAULT '' -- address or network; empty: the hub's own machine
);
CREATE INDEX IF NOT EXISTS traces_tree ON traces (tree);

-- The recordings kept of a tree's starts.
CREATE TABLE IF NOT EXISTS recordings (
	tree BLOB PRIMARY KEY REFERENCES layouts (tree),
	body BLOB NOT NULL -- compressed
);

-- The tree of the newest ready image of each repository. The next image inherits its recordings.
CREATE TABLE IF NOT EXISTS formers (
	repository TEXT NOT NULL,
	platform   TEXT NOT NULL,
	tree       BLOB NOT NULL REFERENCES layouts (tree),
	PRIMARY KEY (repository, platform)
);
