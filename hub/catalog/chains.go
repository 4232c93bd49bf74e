package catalog

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// inImage is the condition that a ready image has chain c.
const inImage = `EXISTS (SELECT 1 FROM image_blobs b JOIN images i ON i.n = b.image
	WHERE b.chain = c.chain AND i.state = '` + wire.StateReady + `')`

// served is the condition that nodes may get chain c: a ready image has it, or somebody holds the
// tree of chain c or of a chain above it, although the image was removed.
const served = `(` + inImage + ` OR EXISTS (
	WITH RECURSIVE up (chain) AS (
		SELECT c.chain
		UNION SELECT above.chain FROM chains above JOIN up ON above.parent = up.chain
	)
	SELECT 1 FROM up JOIN statements held_s ON held_s.chain = up.chain JOIN held ON held.tree = held_s.tree))`

// top is the condition that chain c is the top of a ready image, or that no ready image has chain c
// and somebody holds its tree. Only such chains are announced with the statement about their trees.
// Other trees are made on request: if all were announced, a pull would fetch the index of every
// layer.
const top = `(EXISTS (SELECT 1 FROM image_blobs b JOIN images i ON i.n = b.image
	WHERE b.chain = c.chain AND i.state = '` + wire.StateReady + `'
	AND b.position = (SELECT max(position) FROM image_blobs WHERE image = b.image))
	OR NOT ` + inImage + ` AND EXISTS (SELECT 1 FROM statements held_s JOIN held ON held.tree = held_s.tree
		WHERE held_s.chain = c.chain))`

// Chain describes a chain, and at most wire.MaxAbove chains above it. The error is ErrNotFound if
// the chain is not served: no ready image has it, and nobody holds its tree or a tree above.
func (c *Catalog) Chain(ctx context.Context, chain string) (*wire.Chain, error) {
	found, err := c.links(ctx, `c.chain = ?`, 1, chain)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("chain %s: %w", chain, ErrNotFound)
	}
	answer := &wire.Chain{Link: found[0], Complete: true}
	// The chains above are read level by level. So the nearest chains come first, and the cost is
	// bounded by the answer's length.
	for level := []any{chain}; len(level) > 0; {
		room := wire.MaxAbove - len(answer.Above)
		if found, err = c.links(ctx, `c.parent IN `+database.Places(1, len(level)), room+1, level...); err != nil {
			return nil, err
		}
		if len(found) > room {
			found, answer.Complete = found[:room], false
		}
		level = level[:0]
		for _, link := range found {
			answer.Above = append(answer.Above, link)
			if answer.Complete {
				level = append(level, link.Chain)
			}
		}
	}
	return answer, nil
}

// links returns at most limit chains that are served and meet a condition on chain c. The chains
// that meet the condition top come with their statements.
func (c *Catalog) links(ctx context.Context, condition string, limit int, args ...any) (links []wire.Link, err error) {
	type row struct {
		wire.Link
		tree       database.Null[chunk.ID]
		signatures []byte
	}
	args = append(append([]any{index.Format}, args...), limit)
	for r, err := range database.Rows(ctx, c.db.Read, func(r *row) []any {
		return []any{&r.Chain, &r.Parent, &r.DiffID, &r.tree, &r.signatures}
	}, `SELECT c.chain, c.parent, c.diff_id, s.tree, s.signature FROM chains c
		LEFT JOIN statements s ON s.chain = c.chain AND s.format = ? AND `+top+`
		WHERE `+condition+` AND `+served+` LIMIT ?`, args...) {
		if err != nil {
			return nil, err
		}
		if r.tree.Valid {
			r.Statement = newStatement(r.Chain, r.tree.V, r.signatures)
		}
		links = append(links, r.Link)
	}
	return links, nil
}

// Statement returns the statement about a chain, even if no image has the chain. The error is
// ErrNotFound if the tree of the chain was not made.
func (c *Catalog) Statement(ctx context.Context, chain string) (*index.Statement, error) {
	type row struct {
		tree       chunk.ID
		signatures []byte
	}
	r, err := database.Get(ctx, c.db.Read, func(r *row) []any { return []any{&r.tree, &r.signatures} },
		`SELECT tree, signature FROM statements WHERE chain = ? AND format = ?`, chain, index.Format)
	if err != nil {
		return nil, fmt.Errorf("statement about chain %s: %w", chain, err)
	}
	return newStatement(chain, r.tree, r.signatures), nil
}

// Layers returns the diffIDs of a chain, the lowest first. The error is ErrNotFound if the chain is
// not served, as in Chain.
func (c *Catalog) Layers(ctx context.Context, chain string) ([]string, error) {
	diffIDs, err := database.List(ctx, c.db.Read, database.Value[string], `
		WITH RECURSIVE below (parent, diff_id, depth) AS (
			SELECT c.parent, c.diff_id, 0 FROM chains c WHERE c.chain = ? AND `+served+`
			UNION ALL
			SELECT c.parent, c.diff_id, b.depth + 1 FROM chains c JOIN below b ON c.chain = b.parent
		)
		SELECT diff_id FROM below ORDER BY depth DESC`, chain)
	if err == nil && len(diffIDs) == 0 {
		err = fmt.Errorf("chain %s: %w", chain, ErrNotFound)
	}
	return diffIDs, err
}

// HasLayer reports whether the catalog has a layer, and whether it knows that the blob with the
// given digest decompresses to that layer.
func (c *Catalog) HasLayer(ctx context.Context, diffID, digest string) (layer, blob bool, err error) {
	type known struct{ layer, blob bool }
	k, err := database.Get(ctx, c.db.Read, func(k *known) []any { return []any{&k.layer, &k.blob} }, `
		SELECT EXISTS (SELECT 1 FROM layers WHERE diff_id = ?), EXISTS (SELECT 1 FROM blobs
			WHERE digest = ? AND diff_id = ?)`, diffID, digest, diffID)
	if err != nil {
		return false, false, fmt.Errorf("look up layer %s: %w", wire.ShortDigest(diffID), err)
	}
	return k.layer, k.blob, nil
}
