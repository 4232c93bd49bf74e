-- What the hub knows. Numbers (n) are given by the catalog, dense and rising,
-- so that sets of chunks can be written as runs. Nothing here says that
-- something exists before it does: objects are stored first, rows come after.
-- (The table meta, with the number of this schema, is made beside these.)

-- A name in the registry points to a manifest or an index (root); each manifest
-- below it is one image.
CREATE TABLE images (
	n        INTEGER PRIMARY KEY,
	name     TEXT NOT NULL,
	root     TEXT NOT NULL,
	digest   TEXT NOT NULL,
	platform TEXT NOT NULL,
	state    TEXT NOT NULL,
	error    TEXT NOT NULL,
	size     BIGINT NOT NULL,
	turn     BIGINT NOT NULL, -- place in the queue, while it is queued
	tries    BIGINT NOT NULL, -- how often its taking in was begun and not ended
	updated  BIGINT NOT NULL, -- milliseconds since 1970
	UNIQUE (name, digest)
);
CREATE INDEX images_state ON images (state, turn);

-- The blobs of images that are ready.
CREATE TABLE image_blobs (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	position   BIGINT NOT NULL, -- of layers, 0 is the lowest; -1: the config
	chain      TEXT NOT NULL,   -- of layers
	digest     TEXT NOT NULL,
	media_type TEXT NOT NULL,
	size       BIGINT NOT NULL,
	PRIMARY KEY (image, position)
);
CREATE INDEX image_blobs_chain ON image_blobs (chain);

CREATE TABLE layers (
	diff_id TEXT PRIMARY KEY,
	bytes   BIGINT NOT NULL, -- of the tar stream
	entries BIGINT NOT NULL,
	chunks  BLOB NOT NULL    -- numbers of its chunks, as runs
);

-- Blobs whose decompressed bytes were seen to be a layer.
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
	tree        BLOB PRIMARY KEY,
	files       BIGINT NOT NULL,
	bytes       BIGINT NOT NULL, -- of all files, plain
	chunks      BIGINT NOT NULL, -- distinct ones
	packs       BIGINT NOT NULL,
	units       BIGINT NOT NULL,
	index_bytes BIGINT NOT NULL, -- plain
	index_wire  BIGINT NOT NULL  -- compressed, with the locations
);

CREATE TABLE statements (
	chain     TEXT NOT NULL REFERENCES chains (chain),
	format    BIGINT NOT NULL,
	tree      BLOB NOT NULL REFERENCES trees (tree),
	signature BLOB NOT NULL, -- one or more, of 64 bytes each: in the order of the keys in meta
	PRIMARY KEY (chain, format)
);

CREATE TABLE packs (
	n    INTEGER PRIMARY KEY,
	id   BLOB NOT NULL UNIQUE,
	size BIGINT NOT NULL
);

CREATE TABLE units (
	n      INTEGER PRIMARY KEY,
	pack   BIGINT NOT NULL REFERENCES packs (n),
	place  BIGINT NOT NULL, -- in the pack, from 0
	plain  BIGINT NOT NULL,
	stored BIGINT NOT NULL
);

CREATE TABLE chunks (
	n      INTEGER PRIMARY KEY,
	id     BLOB NOT NULL UNIQUE,
	length BIGINT NOT NULL,
	unit   BIGINT NOT NULL
);
