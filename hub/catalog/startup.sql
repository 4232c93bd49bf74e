-- What the hub knows of how images start. It is a hint to nodes, as all of it:
-- without any of it, images run, and begin more slowly.

-- Where the chunks of each tree lie for nodes, and what startup packs it has.
CREATE TABLE layouts (
	tree      BLOB PRIMARY KEY REFERENCES trees (tree),
	locations BLOB NOT NULL,   -- digest that names the object; empty: to be made
	wire      BIGINT NOT NULL, -- its length
	startup   BLOB NOT NULL,   -- digest of what is in the startup packs, and a byte more if they are pressed; empty: there are none
	due       BIGINT NOT NULL, -- when to lay out anew, milliseconds since 1970; 0: there is no need
	changes   BIGINT NOT NULL, -- how often there was a new reason to
	tries     BIGINT NOT NULL, -- how often that was begun since and not ended
	unserved  BIGINT NOT NULL, -- since when no image that is ready has the tree, as far as somebody looked; 0: one has it
	used      BIGINT NOT NULL DEFAULT 0, -- when somebody asked for its locations last, or told of a start
	lost      BIGINT NOT NULL DEFAULT 0  -- since when it is to have no startup packs, for others were used since; 0: it may
);
CREATE INDEX layouts_due ON layouts (due) WHERE due > 0;

-- Packs whose chunks also lie in packs above.
CREATE TABLE startup_packs (
	id      BLOB PRIMARY KEY,
	size    BIGINT NOT NULL,
	retired BIGINT NOT NULL -- since when no tree has it; 0: one has it
);

CREATE TABLE startups (
	tree     BLOB NOT NULL REFERENCES layouts (tree),
	position BIGINT NOT NULL,
	pack     BLOB NOT NULL REFERENCES startup_packs (id),
	PRIMARY KEY (tree, position)
);
CREATE INDEX startups_pack ON startups (pack);

-- What starts have read that nobody has looked at yet.
CREATE TABLE traces (
	n    INTEGER PRIMARY KEY, -- rising
	tree BLOB NOT NULL REFERENCES layouts (tree),
	raw  BIGINT NOT NULL, -- 1: as a node has sent it; 0: recordings
	body BLOB NOT NULL,   -- compressed
	sender TEXT NOT NULL DEFAULT '' -- address or network; empty: the hub's own machine
);
CREATE INDEX traces_tree ON traces (tree);

-- What is kept of the starts of a tree.
CREATE TABLE recordings (
	tree BLOB PRIMARY KEY REFERENCES layouts (tree),
	body BLOB NOT NULL -- compressed
);

-- The tree of the image that became ready last in each repository: the next one
-- inherits its recordings.
CREATE TABLE formers (
	repository TEXT NOT NULL,
	platform   TEXT NOT NULL,
	tree       BLOB NOT NULL REFERENCES layouts (tree),
	PRIMARY KEY (repository, platform)
);

CREATE INDEX statements_tree ON statements (tree);
