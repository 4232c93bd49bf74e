-- +goose Up
-- What has become of images. A trigger adds the rows, so that each change has its event, whichever
-- statement and whichever release of the hub makes it.
CREATE TABLE events (
	n        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- about in the order of the changes
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
CREATE FUNCTION note_image() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	image images%ROWTYPE;
	kind  TEXT;
BEGIN
	IF TG_OP = 'DELETE' THEN
		image := OLD;
		image.error := '';
		kind := 'removed';
	ELSIF TG_OP = 'UPDATE' AND NEW.state = OLD.state THEN
		RETURN NULL;
	ELSE
		image := NEW;
		kind := NEW.state;
	END IF;
	INSERT INTO events (id, kind, name, root, digest, platform, error, at, unsent)
	VALUES (replace(gen_random_uuid()::text, '-', ''), kind, image.name, image.root, image.digest, image.platform,
		image.error, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT),
		CASE WHEN kind IN ('ready', 'failed', 'removed') THEN 1 ELSE 0 END);
	RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER images_noted AFTER INSERT OR UPDATE OF state OR DELETE ON images
FOR EACH ROW EXECUTE FUNCTION note_image();
