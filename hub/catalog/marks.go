package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
	"lighter/wire"
)

// Marks is the set of the chunks that are needed: those that the layers have. It has the chunks'
// numbers. It is not safe for concurrent use.
type Marks struct {
	numbers numberset.Bits
	layers  map[string]bool // by diffID: the chunks of the layer are marked, or the layer is left out
}

// MarkChunks marks the chunks of all layers, except the layers in without.
func (c *Garbage) MarkChunks(ctx context.Context, without []string) (*Marks, error) {
	m := &Marks{layers: map[string]bool{}}
	for _, diffID := range without {
		m.layers[diffID] = true
	}
	for l, err := range layersChunks(ctx, c.db.Read) {
		if err != nil {
			return nil, err
		}
		if m.layers[l.diffID] {
			continue
		}
		if err := m.mark(l.diffID, l.chunks); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// refresh marks the chunks of the layers that were published since MarkChunks or the last refresh.
func (m *Marks) refresh(ctx context.Context, tx database.Session) error {
	all, err := database.List(ctx, tx, database.Value[string], `SELECT diff_id FROM layers`)
	if err != nil {
		return err
	}
	for _, diffID := range all {
		if m.layers[diffID] {
			continue
		}
		chunks, err := database.Get(ctx, tx, database.Value[[]byte],
			`SELECT chunks FROM layers WHERE diff_id = ?`, diffID)
		if err == nil {
			err = m.mark(diffID, chunks)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Marks) mark(diffID string, chunks []byte) error {
	m.layers[diffID] = true
	if err := numberset.Decode(chunks, func(first, end int64) error {
		m.numbers.Add(first, end)
		return nil
	}); err != nil {
		return fmt.Errorf("layer %s: %w", wire.ShortDigest(diffID), err)
	}
	return nil
}

// gapJoin is the largest number of marked chunks between two unmarked ones that one query reads
// together.
const gapJoin = 1000

// SuspectPacks returns the numbers of the packs that have unmarked chunks, or units without chunks,
// in ascending order.
func (c *Garbage) SuspectPacks(ctx context.Context, m *Marks) ([]int64, error) {
	last, err := database.Get(ctx, c.db.Read, database.Value[int64], `SELECT COALESCE(MAX(n), 0) FROM chunks`)
	if err != nil {
		return nil, err
	}
	units := map[int64]bool{}
	type row struct{ n, unit int64 }
	err = m.numbers.Gaps(last, gapJoin, func(first, end int64) error {
		for r, err := range database.Rows(ctx, c.db.Read, func(r *row) []any { return []any{&r.n, &r.unit} },
			`SELECT n, unit FROM chunks WHERE n >= ? AND n < ?`, first, end) {
			if err != nil {
				return err
			}
			if !m.numbers.Has(r.n) {
				units[r.unit] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	packs := map[int64]bool{}
	add := func(query string, args ...any) error {
		for n, err := range database.Rows(ctx, c.db.Read, database.Value[int64], query, args...) {
			if err != nil {
				return err
			}
			packs[n] = true
		}
		return nil
	}
	if err := add(`SELECT DISTINCT u.pack FROM units u
		WHERE NOT EXISTS (SELECT 1 FROM chunks c WHERE c.unit = u.n)`); err != nil {
		return nil, err
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(units)), lookupBatch) {
		args := make([]any, len(batch))
		for i, n := range batch {
			args[i] = n
		}
		among := database.Places(1, len(batch))
		if err := add(`SELECT DISTINCT pack FROM units WHERE n IN `+among, args...); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(packs)), nil
}

// PackUse says which chunks of a pack are needed: the marked ones.
type PackUse struct {
	N     int64
	ID    chunk.ID
	Size  int64 // in bytes
	Units []UnitUse
}

// UnitUse says which chunks of a unit are needed.
type UnitUse struct {
	N      int64
	Place  uint32 // in the pack
	Plain  int64  // bytes
	Stored int64  // bytes
	Needed []ChunkUse
}

// ChunkUse is a chunk that is needed.
type ChunkUse struct {
	N      int64
	ID     chunk.ID
	Length int64
}

// Live returns the part of the pack's bytes that its needed chunks take, as they are stored.
func (p *PackUse) Live() (bytes int64) {
	for _, u := range p.Units {
		if u.Plain > 0 {
			bytes += u.Stored * u.live() / u.Plain
		}
	}
	return bytes
}

// IsWhole reports whether all chunks of a unit are needed.
func (u *UnitUse) IsWhole() bool { return u.live() == u.Plain }

func (u *UnitUse) live() (plain int64) {
	for _, c := range u.Needed {
		plain += c.Length
	}
	return plain
}

// IsDead reports whether no chunk of the pack is needed.
func (p *PackUse) IsDead() bool {
	return !slices.ContainsFunc(p.Units, func(u UnitUse) bool { return len(u.Needed) > 0 })
}

// PackUse returns the use of a pack, or ErrNotFound.
func (c *Garbage) PackUse(ctx context.Context, m *Marks, n int64) (PackUse, error) {
	return packUse(ctx, c.db.Read, m, n)
}

func packUse(ctx context.Context, in database.Session, m *Marks, n int64) (PackUse, error) {
	p, err := database.Get(ctx, in, func(p *PackUse) []any { return []any{&p.N, &p.ID, &p.Size} },
		`SELECT n, id, size FROM packs WHERE n = ?`, n)
	if err != nil {
		return p, fmt.Errorf("pack %d: %w", n, err)
	}
	p.Units, err = database.List(ctx, in, func(u *UnitUse) []any { return []any{&u.N, &u.Place, &u.Plain, &u.Stored} },
		`SELECT n, place, plain, stored FROM units WHERE pack = ? ORDER BY n`, n)
	if err != nil {
		return p, err
	}
	type row struct {
		ChunkUse
		unit int64
	}
	at := 0
	for r, err := range database.Rows(ctx, in, func(r *row) []any { return []any{&r.N, &r.ID, &r.Length, &r.unit} },
		`SELECT c.n, c.id, c.length, c.unit FROM units u JOIN chunks c ON c.unit = u.n
			WHERE u.pack = ? ORDER BY c.unit, c.n`, n) {
		if err != nil {
			return p, err
		}
		for p.Units[at].N != r.unit {
			at++
		}
		if m.numbers.Has(r.N) {
			p.Units[at].Needed = append(p.Units[at].Needed, r.ChunkUse)
		}
	}
	return p, nil
}

// ForgetPacks removes packs, with their units and chunks. It leaves out packs that have a marked
// chunk, and packs that stuck locations name. Before that it marks the chunks of new layers. It
// returns the number and bytes of the removed packs. The error is ErrChanged if locations that are
// not stuck may name one of the packs: those locations have to be renewed first.
func (c *Garbage) ForgetPacks(
	ctx context.Context, claim Claim, l Lease, m *Marks, stuck *Stuck, packs []PackUse,
) (removed, bytes int64, err error) {
	err = c.removal(ctx, "remove dead packs", l, claim, func(tx database.Session) error {
		if all, err := stuck.areAll(ctx, tx, AnyPack); err != nil || !all {
			return cmp.Or(err, ErrChanged)
		}
		if err := m.refresh(ctx, tx); err != nil {
			return err
		}
		removed, bytes = 0, 0
		for _, p := range packs {
			if stuck.Packs[p.ID] {
				continue
			}
			now, err := packUse(ctx, tx, m, p.N)
			if errors.Is(err, ErrNotFound) || err == nil && !now.IsDead() {
				continue
			}
			if err != nil {
				return err
			}
			if err := forgetPack(ctx, tx, p.N); err != nil {
				return fmt.Errorf("pack %s: %w", p.ID.Short(), err)
			}
			removed++
			bytes += p.Size
		}
		return nil
	})
	return removed, bytes, err
}

// forgetPack removes a pack with its units and chunks.
func forgetPack(ctx context.Context, tx database.Session, n int64) error {
	for _, statement := range []string{
		`DELETE FROM chunks WHERE unit IN (SELECT n FROM units WHERE pack = ?)`,
		`DELETE FROM units WHERE pack = ?`,
		`DELETE FROM packs WHERE n = ?`,
	} {
		if err := tx.Exec(ctx, statement, n); err != nil {
			return err
		}
	}
	return nil
}
