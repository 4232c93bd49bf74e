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
// was made on request. Its objects are stored already.
type Publication struct {
	Image int64 // number of the image that becomes ready; 0: none

	// The new image inherits the recordings of the previous image of this repository and platform.
	// They are not used if Image is 0.
	Repository, Platform string

	// Collections is the result of Catalog.Collections from before the publisher looked up chunks,
	// layers and trees. If the counts are others now, Publish checks that what the publisher has
	// found still exists: the known layers and chunks, the packs of Located, and the tree of
	// KnownTree.
	Collections Collections
	Located     []chunk.ID // packs that the tree's locations name
	KnownTree   bool       // the publisher has found the tree: its objects were stored before

	Lease     Lease // of the job that ingests the image; not used if Image is 0
	Claim     Claim // of the publication's objects
	Size      int64 // bytes of config and layers, as the manifest has them
	Blobs     []Blob
	Layers    []Layer // new layers
	Packs     []Pack  // new packs
	Chunks    []Chunk // new chunks
	Tree      Tree
	Statement index.Statement
}

// Blob is a blob of an image: its config, or a layer with its chain. The layers of an image are in
// its order, the lowest first.
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
	Known   []int64  // numbers of its chunks that the catalog had, in any order
	New     []uint32 // its other chunks, as indexes in Publication.Chunks, in any order
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

	// Locations is the digest that names the tree's locations, and LocationsWire their compressed
	// length. Publish does not replace the locations of a tree that the catalog has.
	Locations     chunk.ID
	LocationsWire int64
}

// Publish adds all rows in one transaction. The error is ErrNotFound if the image was removed
// meanwhile, ErrLost if its job or the claim of the objects was lost, ErrCollected if a row was
// removed to which the publication refers, and ErrOtherTree if the chain has another tree.
func (c *Catalog) Publish(ctx context.Context, p *Publication) error {
	numbers, err := c.reserveFor(ctx, p)
	if err != nil {
		return err
	}
	for {
		if err := c.noteKeys(ctx); err != nil {
			return err
		}
		if err := c.publish(ctx, p, numbers); !errors.Is(err, errOtherKeys) {
			return err
		}
	}
}

// PublishLayer adds a layer before an image has it, with its blob and its new packs and chunks, in
// one transaction. Errors are those of Publish.
func (c *Catalog) PublishLayer(ctx context.Context, p *Publication) error {
	numbers, err := c.reserveFor(ctx, p)
	if err != nil {
		return err
	}
	return c.db.Update(ctx, "publish layer", func(tx database.Session) error {
		if _, err := excludeCollection(ctx, tx, p); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, p.Claim); err != nil {
			return err
		}
		if _, err := publishChunks(ctx, tx, p, numbers); err != nil {
			return err
		}
		return publishBlobs(ctx, tx, p)
	})
}

// publish is a transaction of Publish, with the numbers of new rows.
func (c *Catalog) publish(ctx context.Context, p *Publication, numbers firstNumbers) error {
	err := c.db.Update(ctx, "publish tree "+p.Tree.ID.Short(), func(tx database.Session) error {
		moved, err := excludeCollection(ctx, tx, p)
		if err != nil {
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
			c.holdKeys, publishChains, publishTree, publishLayout, releaseLayers,
		} {
			if err := step(ctx, tx, p); err != nil {
				return err
			}
		}
		if !elsewhere && !moved {
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

// reserveFor reserves the numbers of a publication's new rows. It does so in a transaction of its
// own, so that large publications do not wait for each other.
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
// added some of the chunks since this one was prepared. Then the tree's locations may name units
// that do not have these chunks.
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

// insertChunks adds chunks, except those that another publication has added meanwhile. The numbers
// of the chunks begin with next. unit returns the number of a unit. The function number returns the
// number of the chunk at an index of chunks. added counts the inserted chunks.
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

// unitNumber returns the number of a unit, by the index of its pack and its place in the pack.
type unitNumber func(pack, place uint32) int64

// insertPacks adds packs and their units, except the packs that the catalog has.
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

// errKnown means that a statement has changed nothing: its row exists already, or needs no change.
var errKnown = errors.New("the row is known")

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
	}
	return publishBlobs(ctx, tx, p)
}

// publishBlobs records which layers the blobs are.
func publishBlobs(ctx context.Context, tx database.Session, p *Publication) error {
	for _, b := range p.Blobs {
		if b.DiffID == "" { // the config
			continue
		}
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
	err := tx.Change(ctx, ErrOtherTree, `
		INSERT INTO statements (chain, format, tree, signature) VALUES (?, ?, ?, ?)
		ON CONFLICT (chain, format) DO UPDATE SET signature = excluded.signature
			WHERE statements.tree = excluded.tree`,
		s.Chain, s.Format, s.Tree[:], signatures(&s))
	if err != nil {
		return fmt.Errorf("chain %s: %w", wire.ShortDigest(s.Chain), err)
	}
	return nil
}

// ErrOtherTree means that a chain has another tree of the same format. The layers of a chain make
// one tree in a format, so the hub has made one of the two wrongly. It does not replace the first
// one: nodes may have it, and a collection would delete the layers that only its chain keeps.
var ErrOtherTree = errors.New("its layers have made another tree before: the hub is damaged, " +
	"or its release makes other trees of the same format")

// reserve returns the first of count numbers that no row of a table ever had. Until the transaction
// ends, other transactions that reserve numbers of that table wait.
func reserve(ctx context.Context, tx database.Session, table string, count int) (int64, error) {
	if count == 0 {
		return 1, nil
	}
	last, err := database.Get(ctx, tx, database.Value[int64], `INSERT INTO numbers (name, last) VALUES (?, ?)
		ON CONFLICT (name) DO UPDATE SET last = numbers.last + excluded.last RETURNING last`, table, count)
	return last - int64(count) + 1, err
}
