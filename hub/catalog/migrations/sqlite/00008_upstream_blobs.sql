-- +goose Up
-- Layers that other registries have, by the repositories of the hub's registry that may serve them.
CREATE TABLE upstream_blobs (
	repository TEXT NOT NULL, -- of the hub's registry
	digest     TEXT NOT NULL,
	source     TEXT NOT NULL,   -- repository of the other registry: HOST[:PORT]/PATH
	plain_http BIGINT NOT NULL, -- 1: plain HTTP is allowed there
	size       BIGINT NOT NULL, -- bytes
	PRIMARY KEY (repository, digest, source)
);

-- When a client last relied on a manifest or blob of the hub's registry. Times are the database's, in
-- milliseconds since 1970.
CREATE TABLE registry_blobs (
	digest   TEXT PRIMARY KEY,
	touched  BIGINT NOT NULL,
	deleting BIGINT NOT NULL -- end of the lease of the process that deletes it; 0: none does
);
