-- +goose Up
-- What holders have: nodes and mirrors. They report it again and again.
CREATE TABLE holders (
	holder TEXT PRIMARY KEY, -- the random ID that it has given itself
	kind   TEXT NOT NULL,
	name   TEXT NOT NULL,    -- for users: of its host
	sender TEXT NOT NULL,    -- address or network of its last report; empty: the hub's own machine
	trees  BIGINT NOT NULL,  -- number of its rows in held
	seen   BIGINT NOT NULL   -- its last report, by the database's clock
);
CREATE INDEX holders_sender ON holders (sender);
CREATE TABLE held (
	holder TEXT NOT NULL REFERENCES holders (holder) ON DELETE CASCADE,
	tree   BYTEA NOT NULL,
	PRIMARY KEY (holder, tree)
);
CREATE INDEX held_tree ON held (tree);

-- When the name was last given to the image, by the database's clock; 0: by a hub that does not record it.
ALTER TABLE images ADD COLUMN pushed BIGINT NOT NULL DEFAULT 0;
UPDATE images SET pushed = updated;
