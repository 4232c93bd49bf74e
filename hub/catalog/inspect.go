package catalog

import (
	"context"
	"database/sql"
	"errors"

	"lighter/format/chunk"
	"lighter/wire"
)

// Tree returns a tree, or ErrNotFound.
func (c *Catalog) Tree(ctx context.Context, id chunk.ID) (Tree, error) {
	t := Tree{ID: id}
	var locations []byte
	err := c.read.QueryRowContext(ctx, `
		SELECT t.files, t.bytes, t.chunks, t.packs, t.units, t.index_bytes, t.index_wire, l.locations, l.wire
		FROM trees t JOIN layouts l ON l.tree = t.tree WHERE t.tree = ?`, id[:]).
		Scan(&t.Files, &t.Bytes, &t.Chunks, &t.Packs, &t.Units, &t.IndexBytes, &t.IndexWire, &locations,
			&t.LocationsWire)
	copy(t.Locations[:], locations) // none after an error
	return t, notFound(err)
}

// ImageLayers returns the layers of a ready image, the lowest first.
func (c *Catalog) ImageLayers(ctx context.Context, image int64) ([]wire.LayerInfo, error) {
	var layers []wire.LayerInfo
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var l wire.LayerInfo
		if err := rows.Scan(&l.Digest, &l.DiffID, &l.Chain, &l.MediaType, &l.Size, &l.Bytes, &l.Entries); err != nil {
			return err
		}
		layers = append(layers, l)
		return nil
	}, `SELECT b.digest, c.diff_id, b.chain, b.media_type, b.size, l.bytes, l.entries
		FROM image_blobs b JOIN chains c ON c.chain = b.chain JOIN layers l ON l.diff_id = c.diff_id
		WHERE b.image = ? AND b.position >= 0 ORDER BY b.position`, image)
	return layers, err
}

// Inventory has the numbers of entries, for tests.
type Inventory struct{ Images, Layers, Chains, Trees, Packs, Chunks int64 }

// Inventory returns the counts.
func (c *Catalog) Inventory(ctx context.Context) (Inventory, error) {
	var i Inventory
	var errs []error
	for table, n := range map[string]*int64{"images": &i.Images, "layers": &i.Layers, "chains": &i.Chains,
		"trees": &i.Trees, "packs": &i.Packs, "chunks": &i.Chunks} {
		errs = append(errs, c.read.QueryRowContext(ctx, `SELECT COUNT(*) FROM `+table).Scan(n))
	}
	return i, errors.Join(errs...)
}
