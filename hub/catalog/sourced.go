package catalog

import (
	"context"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Sourced is a ready image that was added from a repository of another registry.
type Sourced struct {
	Source  string // the repository, HOST[:PORT]/PATH
	Digest  string // of the manifest
	Chain   string
	Tree    chunk.ID
	Startup []byte // of the tree's layout: see Layout
	Updated time.Time
}

// Sourced returns the ready images of other registries, or those with a digest if it is not empty.
// An image that has several names, or was added from several repositories, is there several times.
func (c *Catalog) Sourced(ctx context.Context, digest string) ([]Sourced, error) {
	condition, args := "", []any{index.Format, wire.StateReady}
	if digest != "" {
		condition, args = ` AND i.digest = ?`, append(args, digest)
	}
	all, err := database.List(ctx, c.db.Read, func(s *Sourced) []any {
		return []any{&s.Source, &s.Digest, &s.Chain, &s.Tree, &s.Startup, database.Stamp(&s.Updated)}
	}, `SELECT o.repository, i.digest, b.chain, s.tree, l.startup, i.updated
		FROM images i JOIN image_sources o ON o.image = i.n
		JOIN image_blobs b ON b.image = i.n AND b.position >= 0
			AND b.position = (SELECT MAX(position) FROM image_blobs WHERE image = i.n)
		JOIN statements s ON s.chain = b.chain AND s.format = ? JOIN layouts l ON l.tree = s.tree
		WHERE i.state = ?`+condition+` ORDER BY i.n, o.repository`, args...)
	if err != nil {
		return nil, fmt.Errorf("list the images of other registries: %w", err)
	}
	return all, nil
}
