package objects

import (
	"context"
	"fmt"
	"io"
	"sync"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// OpenUnit opens one unit of a pack. An unknown pack is ErrNotFound, a unit
// that it does not have chunk.ErrNotFound.
func (s *Store) OpenUnit(ctx context.Context, u chunk.Unit) (*Object, error) {
	table, err := s.table(ctx, u.Pack)
	if err != nil {
		return nil, err
	}
	offset, length, err := table.Unit(u.N)
	if err != nil {
		return nil, err
	}
	return s.openRange(ctx, PackKey(u.Pack), offset, length)
}

// CountUnits returns how many units a pack has. An unknown pack is ErrNotFound.
func (s *Store) CountUnits(ctx context.Context, id chunk.ID) (int, error) {
	table, err := s.table(ctx, id)
	if err != nil {
		return 0, err
	}
	return table.Units(), nil
}

// tables holds the tables of the packs that were read last: 8 bytes a unit.
type tables struct {
	mu    sync.Mutex
	packs map[chunk.ID]*pack.Table
	order []chunk.ID // of packs, the one read first in front
}

// cachedTables bounds them: a pack has about a hundred units, so they take a
// megabyte or two, and stand for 32 GB of packs.
const cachedTables = 2048

func (s *Store) table(ctx context.Context, id chunk.ID) (*pack.Table, error) {
	s.tables.mu.Lock()
	table := s.tables.packs[id]
	s.tables.mu.Unlock()
	if table != nil {
		return table, nil
	}
	// Several may read the same table at once: cheaper than to make them wait.
	table, err := s.readTable(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.packs == nil {
		t.packs = map[chunk.ID]*pack.Table{}
	}
	if t.packs[id] == nil {
		if len(t.order) >= cachedTables {
			delete(t.packs, t.order[0])
			t.order = t.order[1:]
		}
		t.packs[id] = table
		t.order = append(t.order, id)
	}
	return table, nil
}

func (s *Store) readTable(ctx context.Context, id chunk.ID) (*pack.Table, error) {
	key := PackKey(id)
	o, err := s.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	size := o.Size
	if err := o.Close(); err != nil {
		return nil, fmt.Errorf("close object %s: %w", key, err)
	}
	table, err := pack.ReadTable(rangeReader{ctx, s, key}, size)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", id.Short(), err)
	}
	return table, nil
}

// rangeReader reads ranges of one object while readTable runs; the context is
// that of the call.
type rangeReader struct {
	ctx   context.Context
	store *Store
	key   string
}

func (r rangeReader) ReadAt(b []byte, offset int64) (int, error) {
	o, err := r.store.openRange(r.ctx, r.key, offset, int64(len(b)))
	if err != nil {
		return 0, err
	}
	defer o.Close()
	n, err := io.ReadFull(o, b)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}
