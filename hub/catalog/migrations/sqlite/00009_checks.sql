-- +goose Up
-- Checks of the hub's stores that go on where they were, by kind of job. Times are the database's.
CREATE TABLE checks (
	kind    TEXT PRIMARY KEY,
	place   TEXT NOT NULL, -- key of the last object that was checked; empty: none
	begun   BIGINT NOT NULL,
	ended   BIGINT NOT NULL, -- when the last one was complete; 0: never
	ran     BIGINT NOT NULL, -- when the last job of the kind has ended
	objects BIGINT NOT NULL, -- checked ones of all checks
	bytes   BIGINT NOT NULL, -- that were read
	errors  BIGINT NOT NULL, -- problems that all checks have found
	report  BLOB NOT NULL    -- of the last one
);

-- Backups that are being made. Meanwhile nothing is deleted that the catalog knew.
CREATE TABLE backups (
	owner TEXT PRIMARY KEY,
	until BIGINT NOT NULL -- end of its lease, by the database's clock
);

-- The sweep looks for locations by their digests.
CREATE INDEX layouts_locations ON layouts (locations);
