-- +goose Up
-- Who wants which image. An image without a row is wanted by hand.
CREATE TABLE wants (
	name       TEXT NOT NULL,   -- of the image
	wanter     TEXT NOT NULL,   -- hand, list NAME, hook NAME, pull-through
	source     TEXT NOT NULL,   -- docker://HOST/REPO:TAG; empty: the image was pushed or added by hand
	plain_http BIGINT NOT NULL, -- 1: plain HTTP is allowed for the source
	platforms  TEXT NOT NULL,   -- OS/ARCH, separated by commas; empty: those of the hub's configuration
	may_remove BIGINT NOT NULL, -- 1: the want ends when the source no longer has the image
	by_rules   BIGINT NOT NULL, -- 1: the retention rules may remove the image
	dropped    BIGINT NOT NULL, -- 1: the image is no longer wanted by this wanter; the row goes with the image
	released   BIGINT NOT NULL, -- 1: a retention rule has removed the image; only another digest brings it back
	seen       TEXT NOT NULL,   -- digest that the source had when the image was added last
	error      TEXT NOT NULL,   -- why the last look at the source has failed
	since      BIGINT NOT NULL, -- by the database's clock, in milliseconds since 1970
	PRIMARY KEY (name, wanter)
);

CREATE INDEX wants_wanter ON wants (wanter, name);
