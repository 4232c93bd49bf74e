-- +goose Up
-- Since when the secret of a job is gone; 0: the job has it, or never had one.
ALTER TABLE jobs ADD COLUMN unsealed BIGINT NOT NULL DEFAULT 0;

-- What a job has found out, as JSON; the kind says what it is.
ALTER TABLE jobs ADD COLUMN result BLOB NOT NULL DEFAULT x'';

-- Layouts are made by jobs of the kind layout. The columns due, changes and tries are no longer used.
-- Until when new traces do not lead to another layout, by the database's clock.
ALTER TABLE layouts ADD COLUMN rest BIGINT NOT NULL DEFAULT 0;

INSERT INTO jobs (n, kind, key, root, state, request, payload, secret, priority, run_at, attempts, owner, fence, lease,
	progress, error, created, updated)
SELECT (SELECT COALESCE(MAX(last), 0) FROM numbers WHERE name = 'jobs') + ROW_NUMBER() OVER (ORDER BY due), 'layout', lower(hex(tree)),
	'', 'queued', '', x'', x'', 0, due, 0, '', 0, 0, x'', '', due, due
FROM layouts WHERE due > 0;

INSERT INTO numbers (name, last) SELECT 'jobs', COUNT(*) FROM jobs WHERE kind = 'layout'
ON CONFLICT (name) DO UPDATE SET last = numbers.last + excluded.last;

UPDATE layouts SET due = 0;
UPDATE meta SET value = '10' WHERE name = 'oldest';
