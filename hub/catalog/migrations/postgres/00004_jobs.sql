-- +goose Up
-- The hub's work. Times are the database's, in milliseconds since 1970.
CREATE TABLE jobs (
	n        BIGINT PRIMARY KEY,
	kind     TEXT NOT NULL,
	key      TEXT NOT NULL, -- what the job is about
	root     TEXT NOT NULL, -- of the images that it ingests, whose name is the key; empty: none
	state    TEXT NOT NULL, -- queued, running, paused; done, failed, cancelled
	request  TEXT NOT NULL, -- what the worker of a running job is asked to do
	payload  BYTEA NOT NULL,
	secret   BYTEA NOT NULL, -- sealed; empty when the job has ended
	priority BIGINT NOT NULL,
	run_at   BIGINT NOT NULL,
	attempts BIGINT NOT NULL, -- since it was requested
	owner    TEXT NOT NULL, -- of a running job
	fence    BIGINT NOT NULL, -- number of owners until now
	lease    BIGINT NOT NULL, -- when the owner loses it
	progress BYTEA NOT NULL,
	error    TEXT NOT NULL, -- of the last attempt
	created  BIGINT NOT NULL,
	updated  BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_open ON jobs (kind, key) WHERE state IN ('queued', 'running', 'paused');
CREATE INDEX jobs_next ON jobs (kind, priority, run_at) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (lease) WHERE state = 'running';
CREATE INDEX jobs_ended ON jobs (updated, n) WHERE NOT state IN ('queued', 'running', 'paused');

-- Layers that are being split, each by one worker.
CREATE TABLE claims (
	diff_id TEXT PRIMARY KEY,
	job     BIGINT NOT NULL,
	fence   BIGINT NOT NULL -- of the job, when its owner claimed the layer
);
CREATE INDEX claims_job ON claims (job);
