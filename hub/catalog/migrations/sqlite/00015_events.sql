-- +goose Up
-- What has become of images. Triggers add the rows, so that each change has its event, whichever
-- statement and whichever release of the hub makes it.
CREATE TABLE events (
	n        INTEGER PRIMARY KEY AUTOINCREMENT, -- about in the order of the changes
	id       TEXT NOT NULL, -- random
	kind     TEXT NOT NULL, -- the image's new state; or removed
	name     TEXT NOT NULL,
	root     TEXT NOT NULL,
	digest   TEXT NOT NULL,
	platform TEXT NOT NULL,
	error    TEXT NOT NULL,
	at       BIGINT NOT NULL, -- by the database's clock
	unsent   BIGINT NOT NULL -- 1: table deliveries does not have the event's rows yet
);
CREATE INDEX events_unsent ON events (unsent, n) WHERE unsent = 1;
CREATE INDEX events_at ON events (at);

-- Events that targets are to get, or did not get.
CREATE TABLE deliveries (
	event    BIGINT NOT NULL REFERENCES events (n) ON DELETE CASCADE,
	target   TEXT NOT NULL, -- its name in the configuration
	attempts BIGINT NOT NULL,
	due      BIGINT NOT NULL, -- when the next attempt may be made
	dead     BIGINT NOT NULL, -- since when no attempt is made any more; 0: attempts are made
	error    TEXT NOT NULL, -- of the last attempt
	PRIMARY KEY (event, target)
);
CREATE INDEX deliveries_due ON deliveries (target, event, due) WHERE dead = 0;
CREATE INDEX deliveries_dead ON deliveries (dead, event) WHERE dead > 0;

-- +goose StatementBegin
CREATE TRIGGER images_added AFTER INSERT ON images BEGIN
	INSERT INTO events (id, kind, name, root, digest, platform, error, at, unsent)
	VALUES (lower(hex(randomblob(16))), NEW.state, NEW.name, NEW.root, NEW.digest, NEW.platform, NEW.error,
		CAST(unixepoch('subsec') * 1000 AS INTEGER), CASE WHEN NEW.state IN ('ready', 'failed') THEN 1 ELSE 0 END);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER images_changed AFTER UPDATE OF state ON images WHEN NEW.state <> OLD.state BEGIN
	INSERT INTO events (id, kind, name, root, digest, platform, error, at, unsent)
	VALUES (lower(hex(randomblob(16))), NEW.state, NEW.name, NEW.root, NEW.digest, NEW.platform, NEW.error,
		CAST(unixepoch('subsec') * 1000 AS INTEGER), CASE WHEN NEW.state IN ('ready', 'failed') THEN 1 ELSE 0 END);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER images_removed AFTER DELETE ON images BEGIN
	INSERT INTO events (id, kind, name, root, digest, platform, error, at, unsent)
	VALUES (lower(hex(randomblob(16))), 'removed', OLD.name, OLD.root, OLD.digest, OLD.platform, '',
		CAST(unixepoch('subsec') * 1000 AS INTEGER), 1);
END;
-- +goose StatementEnd
