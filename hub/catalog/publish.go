package catalog

import (
	"context"
	"database/sql"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// Publication has all rows that are added when an image becomes ready, or when the tree of a chain
// was made. Its objects are stored already.
type Publication struct {
	// The recordings of the previous image of these are inherited, if there is an image.
	Repository, Platform string

	Image     int64 // number of the image that becomes ready; 0: none
	Size      int64 // bytes of config and layers in the registry
	Blobs     []Blob
	Layers    []Layer // new ones
	Packs     []Pack  // new ones
	Chunks    []Chunk // new ones
	Tree      Tree
	Statement index.Statement
}

// Blob is one blob of an image: its config, or a layer with its chain. Layers are in the image's
// order, the lowest first.
type Blob struct {
	Digest    string
	MediaType string
	Size      int64
	DiffID    string // of layers
	Chain     string // of layers
}

// Layer is a layer that was split.
type Layer struct {
	DiffID  string
	Bytes   int64 // of its tar stream
	Entries int64
	Known   []int64  // numbers of its known chunks, in any order
	New     []uint32 // its new chunks, as indexes in Publication.Chunks, in any order
}

// Pack is a new pack.
type Pack struct {
	ID    chunk.ID
	Size  int64
	Units []Unit
}

// Unit is a unit of a new pack, with its lengths in bytes.
type Unit struct{ Plain, Stored int64 }

// Chunk is a new chunk, in unit Unit of Publication.Packs[Pack].
type Chunk struct {
	ID         chunk.ID
	Length     uint32
	Pack, Unit uint32
}

// Tree has the figures of a tree.
type Tree struct {
	ID         chunk.ID
	Files      int64
	Bytes      int64 // of all files, plain
	Chunks     int64 // distinct ones
	Packs      int64
	Units      int64
	IndexBytes int64 // plain
	IndexWire  int64 // compressed

	// Locations is the digest that names its locations, and LocationsWire their compressed length.
	// Publish does not replace the locations of a known tree.
	Locations     chunk.ID
	LocationsWire int64
}

// Publish adds all rows in one transaction. The error is ErrNotFound if the image was removed
// meanwhile.
func (c *Catalog) Publish(ctx context.Context, p *Publication) error {
	err := c.update(ctx, "publish tree "+p.Tree.ID.Short(), func(tx *sql.Tx) error {
		for _, step := range []func(context.Context, *sql.Tx, *Publication) error{
			publishImage, publishChunks, publishChains, publishTree, publishLayout,
		} {
			if err := step(ctx, tx, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}

func publishImage(ctx context.Context, tx *sql.Tx, p *Publication) error {
	if p.Image == 0 {
		return nil
	}
	if err := change(ctx, tx, ErrNotFound, `UPDATE images SET state = ?, error = '', size = ?, updated = ?
		WHERE n = ? AND state = ?`, wire.StateReady, p.Size, now(), p.Image, wire.StateActive); err != nil {
		return fmt.Errorf("image %d: %w", p.Image, err)
	}
	if err := exec(ctx, tx, `DELETE FROM image_blobs WHERE image = ?`, p.Image); err != nil {
		return err
	}
	position := 0
	for _, b := range p.Blobs {
		at := -1
		if b.Chain != "" {
			at = position
			position++
		}
		if err := exec(ctx, tx, `INSERT INTO image_blobs (image, position, chain, digest, media_type, size)
			VALUES (?, ?, ?, ?, ?, ?)`, p.Image, at, b.Chain, b.Digest, b.MediaType, b.Size); err != nil {
			return err
		}
	}
	return nil
}

func publishChunks(ctx context.Context, tx *sql.Tx, p *Publication) error {
	first, err := insertPacks(ctx, tx, p.Packs)
	if err != nil {
		return err
	}
	next, err := nextNumber(ctx, tx, "chunks")
	if err != nil {
		return err
	}
	add := inserter{tx: tx, into: `chunks (n, id, length, unit)`, columns: 4}
	for i, chunk := range p.Chunks {
		unit := first[chunk.Pack] + int64(chunk.Unit)
		if err := add.row(ctx, next+int64(i), chunk.ID[:], chunk.Length, unit); err != nil {
			return err
		}
	}
	if err := add.flush(ctx); err != nil {
		return err
	}
	for _, layer := range p.Layers {
		numbers := layer.Known
		for _, i := range layer.New {
			numbers = append(numbers, next+int64(i))
		}
		if err := exec(ctx, tx, `INSERT INTO layers (diff_id, bytes, entries, chunks) VALUES (?, ?, ?, ?)`,
			layer.DiffID, layer.Bytes, layer.Entries, encodeRuns(numbers)); err != nil {
			return err
		}
	}
	return nil
}

// insertPacks adds packs and their units. It returns the number of each pack's first unit.
func insertPacks(ctx context.Context, tx *sql.Tx, packs []Pack) ([]int64, error) {
	n, err := nextNumber(ctx, tx, "packs")
	if err != nil {
		return nil, err
	}
	unit, err := nextNumber(ctx, tx, "units")
	if err != nil {
		return nil, err
	}
	first := make([]int64, len(packs))
	add := inserter{tx: tx, into: `units (n, pack, place, plain, stored)`, columns: 5}
	for i, pack := range packs {
		if err := exec(ctx, tx, `INSERT INTO packs (n, id, size) VALUES (?, ?, ?)`,
			n+int64(i), pack.ID[:], pack.Size); err != nil {
			return nil, err
		}
		first[i] = unit
		for place, u := range pack.Units {
			if err := add.row(ctx, unit, n+int64(i), place, u.Plain, u.Stored); err != nil {
				return nil, err
			}
			unit++
		}
	}
	return first, add.flush(ctx)
}

func publishChains(ctx context.Context, tx *sql.Tx, p *Publication) error {
	parent := ""
	for _, b := range p.Blobs {
		if b.Chain == "" {
			continue
		}
		if err := exec(ctx, tx, `INSERT INTO chains (chain, parent, diff_id) VALUES (?, ?, ?)
			ON CONFLICT (chain) DO NOTHING`, b.Chain, parent, b.DiffID); err != nil {
			return err
		}
		parent = b.Chain
		if err := exec(ctx, tx, `INSERT INTO blobs (digest, diff_id) VALUES (?, ?)
			ON CONFLICT (digest) DO NOTHING`, b.Digest, b.DiffID); err != nil {
			return err
		}
	}
	return nil
}

func publishTree(ctx context.Context, tx *sql.Tx, p *Publication) error {
	t := p.Tree
	if err := exec(ctx, tx, `
		INSERT INTO trees (tree, files, bytes, chunks, packs, units, index_bytes, index_wire)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (tree) DO UPDATE
			SET packs = excluded.packs, units = excluded.units, index_wire = excluded.index_wire`,
		t.ID[:], t.Files, t.Bytes, t.Chunks, t.Packs, t.Units, t.IndexBytes, t.IndexWire); err != nil {
		return err
	}
	s := p.Statement
	return exec(ctx, tx, `
		INSERT INTO statements (chain, format, tree, signature) VALUES (?, ?, ?, ?)
		ON CONFLICT (chain, format) DO UPDATE SET tree = excluded.tree, signature = excluded.signature`,
		s.Chain, s.Format, s.Tree[:], signatures(&s))
}

// nextNumber returns the number of a table's next row. It is safe because there is one writer.
func nextNumber(ctx context.Context, tx *sql.Tx, table string) (int64, error) {
	return get(ctx, tx, value[int64], `SELECT COALESCE(MAX(n), 0) + 1 FROM `+table)
}

// inserter adds rows to a table, several in each statement.
type inserter struct {
	tx      *sql.Tx
	into    string
	columns int
	full    *sql.Stmt
	args    []any
}

const rowsPerInsert = 200

func (i *inserter) row(ctx context.Context, values ...any) (err error) {
	i.args = append(i.args, values...)
	if len(i.args) < rowsPerInsert*i.columns {
		return nil
	}
	if i.full == nil {
		if i.full, err = i.tx.PrepareContext(ctx, i.statement()); err != nil {
			return err
		}
	}
	_, err = i.full.ExecContext(ctx, i.args...)
	i.args = i.args[:0]
	return err
}

func (i *inserter) statement() string {
	return `INSERT INTO ` + i.into + ` VALUES ` + places(len(i.args)/i.columns, i.columns)
}

// flush adds the remaining rows. The transaction closes the prepared statement.
func (i *inserter) flush(ctx context.Context) error {
	if len(i.args) == 0 {
		return nil
	}
	return exec(ctx, i.tx, i.statement(), i.args...)
}
