package catalog

import (
	"context"
	"fmt"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
	"lighter/wire"
)

// Repairs answers what a repair of the hub's stores asks: which trees, layers and images need a
// lost or damaged object, and from which blobs and layer records the object can be made again. It
// also records repaired objects. It is safe for concurrent use.
type Repairs struct{ db *database.DB }

// PlacedChunk is a chunk with the unit that holds it.
type PlacedChunk struct {
	N  int64
	ID chunk.ID
	At chunk.Unit
}

// PackChunks returns the chunks of a pack, in the order of their units. It returns none for a
// startup pack: the catalog places its chunks in other packs.
func (c *Repairs) PackChunks(ctx context.Context, pack chunk.ID) ([]PlacedChunk, error) {
	all, err := database.List(ctx, c.db.Read, func(p *PlacedChunk) []any { return []any{&p.N, &p.ID, &p.At.N} },
		`SELECT c.n, c.id, u.place FROM packs p JOIN units u ON u.pack = p.n JOIN chunks c ON c.unit = u.n
			WHERE p.id = ? ORDER BY u.place, c.n`, pack[:])
	for i := range all {
		all[i].At.Pack = pack
	}
	return all, err
}

// LayersWith returns the layers that have some of the chunks with these numbers, and which of the
// numbers each layer has. numbers is sorted, and so are the numbers of each layer.
func (c *Repairs) LayersWith(ctx context.Context, numbers []int64) (map[string][]int64, error) {
	found := map[string][]int64{}
	for l, err := range layersChunks(ctx, c.db.Read) {
		if err != nil {
			return nil, err
		}
		if err := numberset.Decode(l.chunks, func(first, end int64) error {
			i, _ := slices.BinarySearch(numbers, first)
			for ; i < len(numbers) && numbers[i] < end; i++ {
				found[l.diffID] = append(found[l.diffID], numbers[i])
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("layer %s: %w", wire.ShortDigest(l.diffID), err)
		}
	}
	return found, nil
}

// LayerBlob is a blob that decompresses to a layer, with the name of a ready image that has it.
type LayerBlob struct {
	Image, Digest, MediaType string
	Size                     int64
}

// LayerBlobs returns the blobs of a layer.
func (c *Repairs) LayerBlobs(ctx context.Context, diffID string) ([]LayerBlob, error) {
	return database.List(ctx, c.db.Read, func(b *LayerBlob) []any {
		return []any{&b.Image, &b.Digest, &b.MediaType, &b.Size}
	}, `SELECT DISTINCT i.name, b.digest, b.media_type, b.size FROM chains c JOIN image_blobs b ON b.chain = c.chain
			JOIN images i ON i.n = b.image WHERE c.diff_id = ? AND i.state = '`+wire.StateReady+`'
			ORDER BY i.name, b.digest`, diffID)
}

// TreeOf is a tree of a chain.
type TreeOf struct {
	Chain string
	Tree  chunk.ID
}

// TreesWith returns the trees whose chains have a layer.
func (c *Repairs) TreesWith(ctx context.Context, diffID string) ([]TreeOf, error) {
	return database.List(ctx, c.db.Read, (*TreeOf).fields, `WITH RECURSIVE above (chain) AS (
			SELECT chain FROM chains WHERE diff_id = ?
			UNION SELECT c.chain FROM chains c JOIN above a ON c.parent = a.chain)
		SELECT s.chain, s.tree FROM above a JOIN statements s ON s.chain = a.chain WHERE s.format = ?`,
		diffID, index.Format)
}

func (t *TreeOf) fields() []any { return []any{&t.Chain, &t.Tree} }

// TreesNaming returns the trees that need the object with an ID: as their index, their locations or
// one of their startup packs.
func (c *Repairs) TreesNaming(ctx context.Context, id chunk.ID) ([]TreeOf, error) {
	return database.List(ctx, c.db.Read, (*TreeOf).fields, `SELECT s.chain, s.tree FROM statements s
		WHERE s.format = ? AND (s.tree = ?
			OR s.tree IN (SELECT tree FROM layouts WHERE locations = ?)
			OR s.tree IN (SELECT tree FROM startups WHERE pack = ?))`, index.Format, id[:], id[:], id[:])
}

// ChainLayers returns the diffIDs of a chain, the lowest first, even if no image has the chain.
func (c *Repairs) ChainLayers(ctx context.Context, chain string) ([]string, error) {
	return database.List(ctx, c.db.Read, database.Value[string], `
		WITH RECURSIVE below (parent, diff_id, depth) AS (
			SELECT parent, diff_id, 0 FROM chains WHERE chain = ?
			UNION ALL
			SELECT c.parent, c.diff_id, b.depth + 1 FROM chains c JOIN below b ON c.chain = b.parent
		)
		SELECT diff_id FROM below ORDER BY depth DESC`, chain)
}

// ChainImages returns the names of at most limit ready images that have a chain.
func (c *Repairs) ChainImages(ctx context.Context, chain string, limit int) ([]string, error) {
	return database.List(ctx, c.db.Read, database.Value[string],
		`SELECT DISTINCT i.name FROM image_blobs b JOIN images i ON i.n = b.image
		WHERE b.chain = ? AND i.state = '`+wire.StateReady+`' ORDER BY i.name LIMIT ?`, chain, limit)
}

// ImageBlob is a blob of a ready image.
type ImageBlob struct {
	Digest string
	Image  string // its name
	Size   int64
}

// ImageBlobs returns at most limit blobs of ready images that come after a given one, in the order
// of digests and names.
func (c *Repairs) ImageBlobs(ctx context.Context, after ImageBlob, limit int) ([]ImageBlob, error) {
	return database.List(ctx, c.db.Read, func(b *ImageBlob) []any { return []any{&b.Digest, &b.Image, &b.Size} },
		`SELECT DISTINCT b.digest, i.name, b.size FROM image_blobs b JOIN images i ON i.n = b.image
			WHERE i.state = '`+wire.StateReady+`' AND (b.digest > ? OR b.digest = ? AND i.name > ?)
			ORDER BY b.digest, i.name LIMIT ?`, after.Digest, after.Digest, after.Image, limit)
}

// BlobBytes returns the number and the bytes of the blobs of ready images that no other registry is
// known to have.
func (c *Repairs) BlobBytes(ctx context.Context) (n, size int64, err error) {
	sum, err := database.Get(ctx, c.db.Read, func(s *[2]int64) []any { return []any{&s[0], &s[1]} },
		`SELECT COUNT(*), COALESCE(SUM(size), 0) FROM (SELECT b.digest, MAX(b.size) AS size
			FROM image_blobs b JOIN images i ON i.n = b.image WHERE i.state = '`+wire.StateReady+`'
			AND NOT EXISTS (SELECT 1 FROM upstream_blobs u WHERE u.digest = b.digest) GROUP BY b.digest) AS blobs`)
	return sum[0], sum[1], err
}

// LayerEntries returns the number of entries of a layer, or ErrNotFound.
func (c *Repairs) LayerEntries(ctx context.Context, diffID string) (int64, error) {
	return database.Get(ctx, c.db.Read, database.Value[int64], `SELECT entries FROM layers WHERE diff_id = ?`, diffID)
}

// MoveChunks records that chunks of the catalog are in other packs now. The objects of these packs
// are stored and claimed. Of the packs in old, MoveChunks removes those that have no chunk left.
// Afterwards all locations are among MovedLayouts, because they may name the old packs. The error
// is ErrClaimLost if the claim was lost.
func (c *Catalog) MoveChunks(ctx context.Context, claim Claim, packs []Pack, chunks []Chunk, old []chunk.ID) error {
	numbers, err := c.reserveFor(ctx, &Publication{Packs: packs})
	if err != nil {
		return err
	}
	err = c.db.Update(ctx, "move chunks", func(tx database.Session) error {
		if err := excludePublications(ctx, tx); err != nil { // they may name the old packs
			return err
		}
		if err := tx.Exec(ctx, `UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT)
			WHERE name = 'moves'`); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		unit, err := insertPacks(ctx, tx, packs, numbers)
		if err != nil {
			return err
		}
		for _, k := range chunks {
			n := unit(k.Pack, k.Unit)
			if err := tx.Exec(ctx, `UPDATE chunks SET unit = ? WHERE id = ?`, n, k.ID[:]); err != nil {
				return err
			}
		}
		for _, id := range old {
			const empty = `(SELECT n FROM packs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM units u
				JOIN chunks c ON c.unit = u.n WHERE u.pack = packs.n))`
			if err := tx.Exec(ctx, `DELETE FROM units WHERE pack IN `+empty, id[:]); err != nil {
				return err
			}
			if err := tx.Exec(ctx, `DELETE FROM packs WHERE n IN `+empty, id[:]); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, `UPDATE layouts SET moved = ? WHERE moved <> ?`, AnyPack, AnyPack)
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}

// DropLost removes a lost pack, whose object is claimed, if nothing needs it: it is a retired
// startup pack, or a rewritten pack while there are no MovedLayouts.
func (c *Repairs) DropLost(ctx context.Context, claim Claim, id chunk.ID) error {
	return c.db.Update(ctx, "drop lost pack "+id.Short(), func(tx database.Session) error {
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		for _, statement := range []string{
			`DELETE FROM startup_packs WHERE id = ? AND retired > 0`,
			`DELETE FROM rewritten_packs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM layouts WHERE moved > 0)`,
		} {
			if err := tx.Exec(ctx, statement, id[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// RenewTree replaces a tree's locations by those of t, which name no startup packs, and queues the
// job that makes the tree's layout. The objects of t are stored and claimed. moves is Layout.Moves.
// The error is ErrClaimLost if the claim was lost.
func (c *Repairs) RenewTree(ctx context.Context, claim Claim, moves int64, t Tree) error {
	return c.db.Update(ctx, "renew the locations of tree "+t.ID.Short(), func(tx database.Session) error {
		now, err := lockCollections(ctx, tx)
		if err != nil {
			return err
		}
		if err := lockLayout(ctx, tx, t.ID); err != nil {
			return err
		}
		if err := setLayout(ctx, tx, &Layout{Tree: t.ID, Locations: t.Locations, LocationsWire: t.LocationsWire,
			IndexWire: t.IndexWire, Claim: claim, Moves: moves}, now); err != nil {
			return err
		}
		if err := tx.Exec(ctx, `UPDATE trees SET packs = ?, units = ? WHERE tree = ?`,
			t.Packs, t.Units, t.ID[:]); err != nil {
			return err
		}
		return requestLayout(ctx, tx, t.ID, 0)
	})
}
