-- +goose Up
-- The names of a manifest are looked up when it is deleted.
CREATE INDEX images_root ON images (root);
