package catalog

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// ImageChain is one chain of a ready image, for a copy of what nodes need.
type ImageChain struct {
	Digest    string // of the image's manifest
	Link      wire.Link
	Statement *index.Statement // nil: the tree was not made yet
	Locations chunk.ID         // of the tree
	Top       bool             // the chain is the image's top
}

// ImageChains returns the chains of all ready images, sorted by the digests of their manifests, the
// lowest chain of an image first. Link.Statement is set for the tops of images only.
func (c *Catalog) ImageChains(ctx context.Context) (all []ImageChain, err error) {
	type row struct {
		ImageChain
		position   int64
		tree       database.Null[chunk.ID]
		signatures []byte
		locations  database.Null[chunk.ID]
	}
	tops := map[string]bool{}
	for r, err := range database.Rows(ctx, c.db.Read, func(r *row) []any {
		return []any{&r.Digest, &r.position, &r.Link.Chain, &r.Link.Parent, &r.Link.DiffID, &r.tree, &r.signatures,
			&r.locations}
	}, `SELECT DISTINCT i.digest, b.position, c.chain, c.parent, c.diff_id, s.tree, s.signature, l.locations
		FROM images i JOIN image_blobs b ON b.image = i.n AND b.position >= 0 JOIN chains c ON c.chain = b.chain
		LEFT JOIN statements s ON s.chain = c.chain AND s.format = ? LEFT JOIN layouts l ON l.tree = s.tree
		WHERE i.state = ? ORDER BY i.digest, b.position`, index.Format, wire.StateReady) {
		if err != nil {
			return nil, fmt.Errorf("list the chains of all images: %w", err)
		}
		if r.tree.Valid && r.locations.Valid {
			r.Statement, r.Locations = newStatement(r.Link.Chain, r.tree.V, r.signatures), r.locations.V
		}
		if n := len(all); n > 0 && all[n-1].Digest != r.Digest {
			all[n-1].Top = true
		}
		all = append(all, r.ImageChain)
	}
	if len(all) > 0 {
		all[len(all)-1].Top = true
	}
	for _, c := range all {
		tops[c.Link.Chain] = tops[c.Link.Chain] || c.Top
	}
	for i := range all {
		if tops[all[i].Link.Chain] {
			all[i].Link.Statement = all[i].Statement
		}
	}
	return all, nil
}

// PackIDs returns the IDs of all packs that the hub has: also startup packs and rewritten packs.
func (c *Checks) PackIDs(ctx context.Context) (map[chunk.ID]bool, error) {
	const page = 10_000
	all := map[chunk.ID]bool{}
	for after := (chunk.ID{}); ; {
		some, err := c.Objects(ctx, Packs, after, page)
		if err != nil {
			return nil, fmt.Errorf("list the packs: %w", err)
		}
		for _, o := range some {
			all[o.ID], after = true, o.ID
		}
		if len(some) < page {
			return all, nil
		}
	}
}
