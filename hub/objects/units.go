package objects

import (
	"context"
	"fmt"
	"io"

	lru "github.com/hashicorp/golang-lru/v2"

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

// ReadUnit reads and decodes one unit of a pack. The errors are those of OpenUnit and
// pack.DecodeUnit.
func (s *Store) ReadUnit(ctx context.Context, u chunk.Unit) (*pack.Unit, error) {
	o, err := s.OpenUnit(ctx, u)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	encoded, err := io.ReadAll(io.LimitReader(o, pack.MaxStored+1))
	if err != nil {
		return nil, err
	}
	return pack.DecodeUnit(encoded)
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

// cachedTables bounds the tables of packs in memory. A pack has about a hundred units of 8 bytes in
// its table, so this is 1 to 2 MB for 32 GB of packs.
const cachedTables = 2048

// Tables caches the tables of the packs that were read last, of one store or of all stores of a
// process. It is safe for concurrent use.
type Tables struct {
	cache *lru.Cache[tableKey, *pack.Table]
}

// tableKey names the table of a pack in one store. Other stores need not have the pack.
type tableKey struct {
	store *Store
	pack  chunk.ID
}

// NewTables returns an empty cache of tables.
func NewTables() *Tables {
	cache, err := lru.New[tableKey, *pack.Table](cachedTables)
	if err != nil {
		panic(err) // only for sizes below 1
	}
	return &Tables{cache}
}

func (s *Store) table(ctx context.Context, id chunk.ID) (*pack.Table, error) {
	key := tableKey{s, id}
	if table, cached := s.Tables.cache.Get(key); cached {
		return table, nil
	}
	// Concurrent callers may read the same table twice: this costs less than to synchronize the
	// callers.
	table, err := s.readTable(ctx, id)
	if err == nil {
		s.Tables.cache.Add(key, table)
	}
	return table, err
}

func (s *Store) readTable(ctx context.Context, id chunk.ID) (*pack.Table, error) {
	key := PackKey(id)
	size, err := s.Size(ctx, key)
	if err != nil {
		return nil, err
	}
	table, err := pack.ReadTable(rangeReader{ctx, s, key}, size)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", id.Short(), err)
	}
	return table, nil
}

// rangeReader reads ranges of one object. Its ctx is the context of readTable.
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
