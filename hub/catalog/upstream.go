package catalog

import (
	"context"
	"slices"

	"lighter/hub/catalog/database"
)

// Upstream is a repository of another registry that has a certain layer.
type Upstream struct {
	Repository string // HOST[:PORT]/PATH
	PlainHTTP  bool   // plain HTTP is allowed for that registry
	Digest     string // of the layer
	Size       int64  // of the layer, bytes
}

// AddUpstreams records that other registries have layers of a repository of the hub's registry, and
// touches these layers (Blobs.Touch).
func (c *Catalog) AddUpstreams(ctx context.Context, repository string, layers []Upstream) error {
	return c.db.Update(ctx, "add upstream layers of "+repository, func(tx database.Session) error {
		var digests []string
		for _, l := range layers {
			digests = append(digests, l.Digest)
		}
		for batch := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(digests))), database.RowsPerInsert) {
			if err := touch(ctx, tx, batch); err != nil {
				return err
			}
		}
		for _, l := range layers {
			plain := 0
			if l.PlainHTTP {
				plain = 1
			}
			if err := tx.Exec(ctx, `INSERT INTO upstream_blobs (repository, digest, source, plain_http, size)
				VALUES (?, ?, ?, ?, ?)
				ON CONFLICT (repository, digest, source) DO UPDATE SET plain_http = excluded.plain_http`,
				repository, l.Digest, l.Repository, plain, l.Size); err != nil {
				return err
			}
		}
		return nil
	})
}

// Upstreams returns the repositories of other registries that have a layer of a repository of the
// hub's registry.
func (c *Catalog) Upstreams(ctx context.Context, repository, digest string) ([]Upstream, error) {
	return database.List(ctx, c.db.Read, func(u *Upstream) []any {
		return []any{&u.Repository, &u.PlainHTTP, &u.Digest, &u.Size}
	},
		`SELECT source, plain_http = 1, digest, size FROM upstream_blobs WHERE repository = ? AND digest = ?
			ORDER BY source`, repository, digest)
}
