package objects

import (
	"context"
	"fmt"
	"io"
	"sync"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// OpenUnit opens one unit of a pack. The error wraps ErrNotFound if the pack does not exist, and
// chunk.ErrNotFound if the pack has no such unit.
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

// CountUnits returns the number of units of a pack. The error wraps ErrNotFound if the pack does
// not exist.
func (s *Store) CountUnits(ctx context.Context, id chunk.ID) (int, error) {
	table, err := s.table(ctx, id)
	if err != nil {
		return 0, err
	}
	return table.Units(), nil
}

// tableCache holds the tables of packs that were read last.
type tableCache struct {
	mu    sync.Mutex
	packs map[chunk.ID]*pack.Table
	order []chunk.ID // of packs, the oldest first
}

// cachedTables bounds tableCache. A pack has about a hundred units of 8 bytes in its table, so this
// is 1 to 2 MB for 32 GB of packs.
const cachedTables = 2048

func (s *Store) table(ctx context.Context, id chunk.ID) (*pack.Table, error) {
	c := &s.tables
	c.mu.Lock()
	table := c.packs[id]
	c.mu.Unlock()
	if table != nil {
		return table, nil
	}
	// Concurrent callers may read the same table: that is cheaper than to synchronize them.
	table, err := s.readTable(ctx, id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.packs == nil {
		c.packs = map[chunk.ID]*pack.Table{}
	}
	if c.packs[id] == nil {
		if len(c.order) >= cachedTables {
			delete(c.packs, c.order[0])
			c.order = c.order[1:]
		}
		c.packs[id] = table
		c.order = append(c.order, id)
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

// rangeReader reads ranges of one object. Its context is that of readTable.
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
