package catalog

import (
	"context"
	"database/sql"
	"fmt"

	"lighter/format/index"
	"lighter/wire"
)

// sourcesTable holds from which repositories images were copied. A hub of a version
// before ignores it, and it is therefore no part of the schema.
const sourcesTable = `
CREATE TABLE IF NOT EXISTS image_sources (
	image      BIGINT NOT NULL REFERENCES images (n) ON DELETE CASCADE,
	repository TEXT NOT NULL, -- HOST[:PORT]/PATH
	PRIMARY KEY (image, repository)
);
CREATE INDEX IF NOT EXISTS images_digest ON images (digest)`

// AddSource notes that the images were found in a repository of another registry.
func (c *Catalog) AddSource(ctx context.Context, images []Image, repository string) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		for _, image := range images {
			// An image that was taken away meanwhile has no source.
			if _, err := tx.ExecContext(ctx, `
				INSERT INTO image_sources (image, repository) SELECT n, ? FROM images WHERE n = ?
				ON CONFLICT (image, repository) DO NOTHING`, repository, image.N); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("note the source %s: %w", repository, err)
	}
	return nil
}

// Manifest is what there is to know of the images that are ready and have a manifest.
type Manifest struct {
	Names     []string // of the images
	Sources   []string // repositories that they were copied from, HOST[:PORT]/PATH
	DiffIDs   []string // of the layers, the lowest first
	Statement *index.Statement
}

// Manifest returns what there is to know of a manifest. ErrNotFound: no image that is
// ready has it.
func (c *Catalog) Manifest(ctx context.Context, digest string) (*Manifest, error) {
	images, err := c.images(ctx, selectImages+` WHERE i.digest = ? AND i.state = ? ORDER BY i.n`, index.Format, digest, wire.StateReady)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("manifest %s: %w", digest, ErrNotFound)
	}
	m := &Manifest{}
	for _, image := range images {
		m.Names = append(m.Names, image.Name)
	}
	err = each(ctx, c.read, func(rows *sql.Rows) error {
		var source string
		err := rows.Scan(&source)
		m.Sources = append(m.Sources, source)
		return err
	}, `SELECT DISTINCT s.repository FROM image_sources s JOIN images i ON i.n = s.image WHERE i.digest = ? AND i.state = ?`, digest, wire.StateReady)
	if err != nil {
		return nil, err
	}
	// The same manifest has the same layers under each name.
	if m.DiffIDs, err = c.Layers(ctx, images[0].Chain); err != nil {
		return nil, err
	}
	m.Statement, err = c.Statement(ctx, images[0].Chain)
	return m, err
}
