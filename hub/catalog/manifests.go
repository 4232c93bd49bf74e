package catalog

import (
	"context"
	"fmt"

	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// AddSource records that the images were added from a repository of another registry.
func (c *Catalog) AddSource(ctx context.Context, images []Image, repository string) error {
	return c.db.Update(ctx, "add source "+repository, func(tx database.Session) error {
		return addSource(ctx, tx, images, repository)
	})
}

func addSource(ctx context.Context, tx database.Session, images []Image, repository string) error {
	for _, image := range images {
		// A removed image gets no source.
		if err := tx.Exec(ctx, `
			INSERT INTO image_sources (image, repository) SELECT n, ? FROM images WHERE n = ?
			ON CONFLICT (image, repository) DO NOTHING`, repository, image.N); err != nil {
			return err
		}
	}
	return nil
}

// Manifest is what the catalog knows of a manifest, from all ready images with it.
type Manifest struct {
	Names     []string // of the images
	Sources   []string // repositories that they were added from, HOST[:PORT]/PATH
	DiffIDs   []string // of the layers, the lowest first
	Bytes     []int64  // of the layers, as tar streams
	Statement *index.Statement
}

// Manifest returns what the catalog knows of a manifest. The error is ErrNotFound if no ready image
// has the manifest.
func (c *Catalog) Manifest(ctx context.Context, digest string) (*Manifest, error) {
	images, err := c.images(ctx, `WHERE i.digest = ? AND i.state = ? ORDER BY i.n`, digest, wire.StateReady)
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
	m.Sources, err = database.List(ctx, c.db.Read, database.Value[string], `SELECT DISTINCT s.repository
		FROM image_sources s JOIN images i ON i.n = s.image WHERE i.digest = ? AND i.state = ?`,
		digest, wire.StateReady)
	if err != nil {
		return nil, err
	}
	// The same manifest has the same layers under each name.
	if m.DiffIDs, err = c.Layers(ctx, images[0].Chain); err != nil {
		return nil, err
	}
	for _, diffID := range m.DiffIDs {
		bytes, err := database.Get(ctx, c.db.Read, database.Value[int64],
			`SELECT bytes FROM layers WHERE diff_id = ?`, diffID)
		if err != nil {
			return nil, fmt.Errorf("look up layer %s: %w", wire.ShortDigest(diffID), err)
		}
		m.Bytes = append(m.Bytes, bytes)
	}
	m.Statement, err = c.Statement(ctx, images[0].Chain)
	return m, err
}
