-- +goose Up
-- The schema as SQLite has it since its third migration.

CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO meta VALUES ('oldest', '3');

-- The last number that a row of a table got. Numbers are never used again: deleted chunks must not
-- lend theirs to others, and work on a removed image must not be taken for work on another one.
CREATE TABLE numbers (
	name TEXT PRIMARY KEY, -- of the table
	last BIGINT NOT NULL
);

-- The catalog assigns the numbers (n). They are dense and rise, so that a set of chunks is stored as
-- a few runs. Times are milliseconds since 1970. A row is inserted after the object that it names was
-- stored.

-- A name in the registry refers to a manifest or to an index (root). Each manifest below an index is
-- one image.
CREATE TABLE images (
	n        BIGINT PRIMARY KEY,
	name     TEXT COLLATE "C" NOT NULL,
	root     TEXT NOT NULL,
	digest   TEXT NOT NULL,
	platform TEXT NOT NULL,
	state    TEXT NOT NULL,
	error    TEXT NOT NULL,
	size     BIGINT NOT NULL,
	updated  BIGINT NOT NULL,
	UNIQUE (name, digest)
);
CREATE INDEX images_state ON images (state);
CREATE INDEX images_digest ON images (digest);
-- The names of a manifest are looked up when it is deleted.
CREATE INDEX images_root ON images (root);

-- The repositories of other registries from which images were copied.
CREATE TABLE image_sources (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	repository TEXT NOT NULL, -- HOST[:PORT]/PATH
	PRIMARY KEY (image, repository)
);

-- The blobs of ready images.
CREATE TABLE image_blobs (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	position   BIGINT NOT NULL, -- of a layer, from 0 for the lowest; -1: the config
	chain      TEXT NOT NULL,   -- of a layer
	digest     TEXT NOT NULL,
	media_type TEXT NOT NULL,
	size       BIGINT NOT NULL,
	PRIMARY KEY (image, position)
);
CREATE INDEX image_blobs_chain ON image_blobs (chain);

-- The bytes that only one image has. They are derived from the other tables.
CREATE TABLE image_sizes (
	digest TEXT PRIMARY KEY, -- images with the same digest count as one
	alone  BYTEA NOT NULL,    -- numbers of the chunks that no other image has, as runs
	plain  BIGINT NOT NULL,  -- bytes of these chunks
	stored BIGINT NOT NULL,
	blobs  BIGINT NOT NULL   -- bytes of the blobs that no other image has
);

CREATE TABLE layers (
	diff_id TEXT PRIMARY KEY,
	bytes   BIGINT NOT NULL, -- of the tar stream
	entries BIGINT NOT NULL,
	chunks  BYTEA NOT NULL    -- numbers of its chunks, as runs
);

-- Compressed layers, by the layer to which they were seen to decompress.
CREATE TABLE blobs (
	digest  TEXT PRIMARY KEY,
	diff_id TEXT NOT NULL REFERENCES layers (diff_id)
);

CREATE TABLE chains (
	chain   TEXT PRIMARY KEY,
	parent  TEXT NOT NULL, -- empty for the lowest
	diff_id TEXT NOT NULL REFERENCES layers (diff_id)
);
CREATE INDEX chains_parent ON chains (parent);

CREATE TABLE trees (
	tree        BYTEA PRIMARY KEY,
	files       BIGINT NOT NULL,
	bytes       BIGINT NOT NULL, -- of all files, plain
	chunks      BIGINT NOT NULL, -- distinct ones
	packs       BIGINT NOT NULL,
	units       BIGINT NOT NULL,
	index_bytes BIGINT NOT NULL, -- plain
	index_wire  BIGINT NOT NULL  -- compressed
);

CREATE TABLE statements (
	chain     TEXT NOT NULL REFERENCES chains (chain),
	format    BIGINT NOT NULL,
	tree      BYTEA NOT NULL REFERENCES trees (tree),
	signature BYTEA NOT NULL, -- 64 bytes for each of the keys in meta, in their order
	PRIMARY KEY (chain, format)
);
CREATE INDEX statements_tree ON statements (tree);

CREATE TABLE packs (
	n    BIGINT PRIMARY KEY,
	id   BYTEA NOT NULL UNIQUE,
	size BIGINT NOT NULL
);

CREATE TABLE units (
	n      BIGINT PRIMARY KEY,
	pack   BIGINT NOT NULL REFERENCES packs (n),
	place  BIGINT NOT NULL, -- in the pack, from 0
	plain  BIGINT NOT NULL, -- bytes
	stored BIGINT NOT NULL  -- bytes
);

CREATE TABLE chunks (
	n      BIGINT PRIMARY KEY,
	id     BYTEA NOT NULL UNIQUE,
	length BIGINT NOT NULL,
	unit   BIGINT NOT NULL
);

-- What the hub knows about how images start. All of it is a hint: without it images start more
-- slowly.

-- The locations and startup packs of each tree.
CREATE TABLE layouts (
	tree      BYTEA PRIMARY KEY REFERENCES trees (tree),
	locations BYTEA NOT NULL,   -- digest that names the object
	wire      BIGINT NOT NULL, -- its length
	startup   BYTEA NOT NULL,   -- digest of the layout, and one more byte if it is recompressed; empty: no startup packs
	due       BIGINT NOT NULL, -- when to make the layout again; 0: never
	changes   BIGINT NOT NULL, -- counts the reasons to make it again
	tries     BIGINT NOT NULL, -- attempts since the last reason that did not succeed
	unserved  BIGINT NOT NULL, -- when it was first found that no ready image has the tree; 0: one has it
	used      BIGINT NOT NULL DEFAULT 0, -- when a node last asked for the locations or reported a start
	lost      BIGINT NOT NULL DEFAULT 0  -- since when the tree has no startup packs for lack of room; 0: it may have some
);
CREATE INDEX layouts_due ON layouts (due) WHERE due > 0;

-- Packs whose chunks are also in other packs.
CREATE TABLE startup_packs (
	id      BYTEA PRIMARY KEY,
	size    BIGINT NOT NULL,
	retired BIGINT NOT NULL -- since when no tree has it; 0: one has it
);

CREATE TABLE startups (
	tree     BYTEA NOT NULL REFERENCES layouts (tree),
	position BIGINT NOT NULL,
	pack     BYTEA NOT NULL REFERENCES startup_packs (id),
	PRIMARY KEY (tree, position)
);
CREATE INDEX startups_pack ON startups (pack);

-- Reported traces that are not merged yet.
CREATE TABLE traces (
	n    BIGINT PRIMARY KEY,
	tree BYTEA NOT NULL REFERENCES layouts (tree),
	raw  BOOLEAN NOT NULL, -- a node's trace; otherwise imported recordings
	body BYTEA NOT NULL,   -- compressed
	sender TEXT NOT NULL DEFAULT '' -- address or network; empty: the hub's own machine
);
CREATE INDEX traces_tree ON traces (tree);

-- The recordings kept of a tree's starts.
CREATE TABLE recordings (
	tree BYTEA PRIMARY KEY REFERENCES layouts (tree),
	body BYTEA NOT NULL -- compressed
);

-- The tree of the newest ready image of each repository. The next image inherits its recordings.
CREATE TABLE formers (
	repository TEXT NOT NULL,
	platform   TEXT NOT NULL,
	tree       BYTEA NOT NULL REFERENCES layouts (tree),
	PRIMARY KEY (repository, platform)
);
