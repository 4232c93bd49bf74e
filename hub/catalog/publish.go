package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
	"lighter/wire"
)

// Publication has all rows that are added when an image becomes ready, or when the tree of a chain
// was made. Its objects are stored already.
type Publication struct {
	// The recordings of the previous image of these are inherited, if there is an image.
	Repository, Platform string

	Image int64 // number of the image that becomes ready; 0: none

	// What the publication refers to and does not add. Collections is what the method of that name
	// returned before the publisher looked for it.
	Collections int64
	Located     []chunk.ID // packs that the tree's locations name
	KnownTree   bool       // the tree's objects were stored before

	Lease     Lease // of the job that made it, if there is an image
	Claim     Claim // of its objects
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
// meanwhile, ErrLost if its job or the claim of its objects was lost, and ErrCollected if something
// that it refers to was removed.
func (c *Catalog) Publish(ctx context.Context, p *Publication) error {
	numbers, err := c.reserveFor(ctx, p)
	if err != nil {
		return err
	}
	err = c.db.Update(ctx, "publish tree "+p.Tree.ID.Short(), func(tx database.Session) error {
		if err := excludeCollection(ctx, tx, p); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, p.Claim); err != nil {
			return err
		}
		if err := publishImage(ctx, tx, p); err != nil {
			return err
		}
		elsewhere, err := publishChunks(ctx, tx, p, numbers)
		if err != nil {
			return err
		}
		for _, step := range []func(context.Context, database.Session, *Publication) error{
			publishChains, publishTree, publishLayout, releaseLayers,
		} {
			if err := step(ctx, tx, p); err != nil {
				return err
			}
		}
		if !elsewhere {
			return nil
		}
		return tx.Exec(ctx, `UPDATE layouts SET moved = ? WHERE tree = ?`, AnyPack, p.Tree.ID[:])
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}

// firstNumbers are the first numbers of a publication's new rows.
type firstNumbers struct{ packs, units, chunks int64 }

// reserveFor reserves the numbers of a publication, in a transaction of its own, so that large
// publications do not wait for each other.
func (c *Catalog) reserveFor(ctx context.Context, p *Publication) (first firstNumbers, err error) {
	units := 0
	for _, pack := range p.Packs {
		units += len(pack.Units)
	}
	if len(p.Packs)+len(p.Chunks) == 0 {
		return first, nil
	}
	err = c.db.Update(ctx, "reserve numbers", func(tx database.Session) error {
		if first.packs, err = reserve(ctx, tx, "packs", len(p.Packs)); err != nil {
			return err
		}
		if first.units, err = reserve(ctx, tx, "units", units); err != nil {
			return err
		}
		first.chunks, err = reserve(ctx, tx, "chunks", len(p.Chunks))
		return err
	})
	return first, err
}

func publishImage(ctx context.Context, tx database.Session, p *Publication) error {
	if p.Image == 0 {
		return nil
	}
	if err := hold(ctx, tx, p.Lease); err != nil {
		return err
	}
	if err := tx.Change(ctx, ErrNotFound, `UPDATE images SET state = ?, error = '', size = ?, updated = `+tx.Clock+`
		WHERE n = ? AND state = ?`, wire.StateReady, p.Size, p.Image, wire.StateActive); err != nil {
		return fmt.Errorf("image %d: %w", p.Image, err)
	}
	if err := tx.Exec(ctx, `DELETE FROM image_blobs WHERE image = ?`, p.Image); err != nil {
		return err
	}
	position := 0
	for _, b := range p.Blobs {
		at := -1
		if b.Chain != "" {
			at = position
			position++
		}
		if err := tx.Exec(ctx, `INSERT INTO image_blobs (image, position, chain, digest, media_type, size)
			VALUES (?, ?, ?, ?, ?, ?)`, p.Image, at, b.Chain, b.Digest, b.MediaType, b.Size); err != nil {
			return err
		}
	}
	return nil
}

// publishChunks adds packs, chunks and layers. elsewhere reports whether another publication has
// just added some of the chunks, in other units.
func publishChunks(
	ctx context.Context, tx database.Session, p *Publication, numbers firstNumbers,
) (elsewhere bool, err error) {
	unit, err := insertPacks(ctx, tx, p.Packs, numbers)
	if err != nil {
		return false, err
	}
	number, added, err := insertChunks(ctx, tx, p.Chunks, unit, numbers.chunks)
	if err != nil {
		return false, err
	}
	for _, layer := range p.Layers {
		numbers := slices.Clone(layer.Known)
		for _, i := range layer.New {
			numbers = append(numbers, number(i))
		}
		if err := tx.Exec(ctx, `INSERT INTO layers (diff_id, bytes, entries, chunks) VALUES (?, ?, ?, ?)
			ON CONFLICT (diff_id) DO NOTHING`,
			layer.DiffID, layer.Bytes, layer.Entries, numberset.Encode(numbers)); err != nil {
			return false, err
		}
	}
	return added < int64(len(p.Chunks)), nil
}

// insertChunks adds chunks, numbered from next, except those that another publication has just
// added. unit returns the number of a unit. number returns the number of one of the chunks.
func insertChunks(
	ctx context.Context, tx database.Session, chunks []Chunk, unit unitNumber, next int64,
) (number func(i uint32) int64, added int64, err error) {
	add := database.Inserter{TX: tx, Into: `chunks (n, id, length, unit)`, Columns: 4, Key: `id`}
	for i, c := range chunks {
		if err := add.Row(ctx, next+int64(i), c.ID[:], c.Length, unit(c.Pack, c.Unit)); err != nil {
			return nil, 0, err
		}
	}
	if err := add.Flush(ctx); err != nil {
		return nil, 0, err
	}
	if add.Added == int64(len(chunks)) {
		return func(i uint32) int64 { return next + int64(i) }, add.Added, nil
	}
	ids := make([]chunk.ID, len(chunks))
	for i, c := range chunks {
		ids[i] = c.ID
	}
	numbers, err := numbersOf(ctx, tx, ids)
	return func(i uint32) int64 { return numbers[ids[i]] }, add.Added, err
}

// unitNumber returns the number of a unit, from its place in a pack.
type unitNumber func(pack, place uint32) int64

// insertPacks adds packs and their units, except those that the catalog has.
func insertPacks(ctx context.Context, tx database.Session, packs []Pack, numbers firstNumbers) (unitNumber, error) {
	n, unit := numbers.packs, numbers.units
	first := make([]int64, len(packs))
	known := map[uint32][]int64{} // units of packs that the catalog has
	add := database.Inserter{TX: tx, Into: `units (n, pack, place, plain, stored)`, Columns: 5}
	for i, pack := range packs {
		err := tx.Change(ctx, errKnown, `INSERT INTO packs (n, id, size) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING`,
			n+int64(i), pack.ID[:], pack.Size)
		if errors.Is(err, errKnown) {
			known[uint32(i)], err = database.List(ctx, tx, database.Value[int64],
				`SELECT u.n FROM units u JOIN packs p ON p.n = u.pack
				WHERE p.id = ? ORDER BY u.place`, pack.ID[:])
			if err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		first[i] = unit
		for place, u := range pack.Units {
			if err := add.Row(ctx, unit, n+int64(i), place, u.Plain, u.Stored); err != nil {
				return nil, err
			}
			unit++
		}
	}
	return func(pack, place uint32) int64 {
		if units := known[pack]; units != nil {
			return units[place]
		}
		return first[pack] + int64(place)
	}, add.Flush(ctx)
}

// errKnown means that a row exists already.
var errKnown = errors.New("it is known")

func publishChains(ctx context.Context, tx database.Session, p *Publication) error {
	parent := ""
	for _, b := range p.Blobs {
		if b.Chain == "" {
			continue
		}
		if err := tx.Exec(ctx, `INSERT INTO chains (chain, parent, diff_id) VALUES (?, ?, ?)
			ON CONFLICT (chain) DO NOTHING`, b.Chain, parent, b.DiffID); err != nil {
			return err
		}
		parent = b.Chain
		if err := tx.Exec(ctx, `INSERT INTO blobs (digest, diff_id) VALUES (?, ?)
			ON CONFLICT (digest) DO NOTHING`, b.Digest, b.DiffID); err != nil {
			return err
		}
	}
	return nil
}

func publishTree(ctx context.Context, tx database.Session, p *Publication) error {
	t := p.Tree
	if err := tx.Exec(ctx, `
		INSERT INTO trees (tree, files, bytes, chunks, packs, units, index_bytes, index_wire)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (tree) DO UPDATE
			SET packs = excluded.packs, units = excluded.units, index_wire = excluded.index_wire`,
		t.ID[:], t.Files, t.Bytes, t.Chunks, t.Packs, t.Units, t.IndexBytes, t.IndexWire); err != nil {
		return err
	}
	s := p.Statement
	return tx.Exec(ctx, `
		INSERT INTO statements (chain, format, tree, signature) VALUES (?, ?, ?, ?)
		ON CONFLICT (chain, format) DO UPDATE SET tree = excluded.tree, signature = excluded.signature`,
		s.Chain, s.Format, s.Tree[:], signatures(&s))
}

// reserve returns the first of count numbers that no row of a table ever had. Other transactions
// that reserve numbers of that table wait until this one ends.
func reserve(ctx context.Context, tx database.Session, table string, count int) (int64, error) {
	if count == 0 {
		return 1, nil
	}
	last, err := database.Get(ctx, tx, database.Value[int64], `INSERT INTO numbers (name, last) VALUES (?, ?)
		ON CONFLICT (name) DO UPDATE SET last = numbers.last + excluded.last RETURNING last`, table, count)
	return last - int64(count) + 1, err
}
