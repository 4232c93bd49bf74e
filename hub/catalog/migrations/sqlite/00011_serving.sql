-- +goose Up
-- When holders could last report, and since when they can without a long interruption, by the
-- database's clock in milliseconds since 1970.
INSERT INTO meta (name, value) SELECT 'serving', CAST(COALESCE(MAX(seen), CAST(strftime('%s', 'now') AS BIGINT) * 1000) AS TEXT) FROM holders;
INSERT INTO meta (name, value) VALUES ('serving_since', '0');

-- Counts the transactions that gave chunks other places without removing the old ones.
INSERT INTO meta (name, value) VALUES ('moves', '0');
