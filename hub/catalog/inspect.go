package catalog

import (
	"context"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Tree returns a tree, or ErrNotFound.
func (c *Catalog) Tree(ctx context.Context, id chunk.ID) (Tree, error) {
	return database.Get(ctx, c.db.Read, func(t *Tree) []any {
		return []any{&t.ID, &t.Files, &t.Bytes, &t.Chunks, &t.Packs, &t.Units, &t.IndexBytes, &t.IndexWire,
			&t.Locations, &t.LocationsWire}
	}, `SELECT t.tree, t.files, t.bytes, t.chunks, t.packs, t.units, t.index_bytes, t.index_wire, l.locations, l.wire
		FROM trees t JOIN layouts l ON l.tree = t.tree WHERE t.tree = ?`, id[:])
}

// ImageLayers returns the layers of a ready image, the lowest first.
func (c *Catalog) ImageLayers(ctx context.Context, image int64) ([]wire.LayerInfo, error) {
	return database.List(ctx, c.db.Read, func(l *wire.LayerInfo) []any {
		return []any{&l.Digest, &l.DiffID, &l.Chain, &l.MediaType, &l.Size, &l.Bytes, &l.Entries}
	}, `SELECT b.digest, c.diff_id, b.chain, b.media_type, b.size, l.bytes, l.entries
		FROM image_blobs b JOIN chains c ON c.chain = b.chain JOIN layers l ON l.diff_id = c.diff_id
		WHERE b.image = ? AND b.position >= 0 ORDER BY b.position`, image)
}

// Inventory has the numbers of rows of some tables, for tests.
type Inventory struct{ Images, Layers, Chains, Trees, Packs, Chunks int64 }

// Inventory counts the rows.
func (c *Catalog) Inventory(ctx context.Context) (Inventory, error) {
	return database.Get(ctx, c.db.Read, func(i *Inventory) []any {
		return []any{&i.Images, &i.Layers, &i.Chains, &i.Trees, &i.Packs, &i.Chunks}
	}, `SELECT (SELECT COUNT(*) FROM images), (SELECT COUNT(*) FROM layers), (SELECT COUNT(*) FROM chains),
		(SELECT COUNT(*) FROM trees), (SELECT COUNT(*) FROM packs), (SELECT COUNT(*) FROM chunks)`)
}
