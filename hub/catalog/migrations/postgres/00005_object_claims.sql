-- +goose Up
-- Objects that are being stored or deleted, each by one publication.
CREATE TABLE object_claims (
	key   TEXT PRIMARY KEY,
	owner TEXT NOT NULL, -- of this claim only; begins with the name of the process
	until BIGINT NOT NULL -- end of its lease, by the database's clock
);
CREATE INDEX object_claims_owner ON object_claims (owner);
UPDATE meta SET value = '5' WHERE name = 'oldest';
