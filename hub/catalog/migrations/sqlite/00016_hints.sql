-- +goose Up
-- Hints that an image of another registry may have changed, until a look at that registry is queued.
CREATE TABLE hints (
	hook       TEXT NOT NULL, -- its name in the configuration
	repository TEXT NOT NULL, -- of the hook's registry, without its host
	reference  TEXT NOT NULL, -- a tag or a digest; empty: every name that the hub has of the repository
	serial     BIGINT NOT NULL, -- counts the hints about the same image
	since      BIGINT NOT NULL, -- when the first of them came, by the database's clock
	PRIMARY KEY (hook, repository, reference)
);
CREATE INDEX hints_since ON hints (hook, since);
