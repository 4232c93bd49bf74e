-- +goose Up
-- Since when the secret of a job is gone; 0: the job has it, or never had one.
ALTER TABLE jobs ADD COLUMN unsealed BIGINT NOT NULL DEFAULT 0;
