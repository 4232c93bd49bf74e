package store

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// memory is a Cache without a bound.
type memory struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
}

func newMemory() *memory { return &memory{chunks: map[chunk.ID][]byte{}} }

func (m *memory) Read(ref chunk.Ref, offset int, dst []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.chunks[ref.ID]
	return ok && copy(dst, b[offset:]) == len(dst)
}

func (m *memory) Has(id chunk.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.chunks[id]
	return ok
}

func (*memory) Load([]chunk.Ref) {}

func (*memory) IsLoading() bool { return false }

func (m *memory) Put(ref chunk.Ref, plain []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chunks[ref.ID] = bytes.Clone(plain)
}

// source is a Source with the answers of two functions.
type source struct {
	unit  func(ctx context.Context, u chunk.Unit) ([]byte, error)
	chunk func(ctx context.Context, id chunk.ID) ([]byte, error)
	asked atomic.Int64
	from  string // name of its origin
}

func (s *source) FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error {
	s.asked.Add(1)
	return s.give(take)(s.unit(ctx, u))
}

func (s *source) Fetch(ctx context.Context, ref chunk.Ref, take func(Answer) error) error {
	s.asked.Add(1)
	if s.chunk == nil {
		return fmt.Errorf("chunk %s: %w", ref.ID, chunk.ErrNotFound)
	}
	return s.give(take)(s.chunk(ctx, ref.ID))
}

func (s *source) give(take func(Answer) error) func([]byte, error) error {
	return func(b []byte, err error) error {
		if err != nil {
			return err
		}
		return take(unitAnswer(b, s.from))
	}
}

// unitAnswer is an answer with an encoded unit.
func unitAnswer(b []byte, origin string) Answer {
	return Answer{Origin: origin, Length: int64(len(b)), Body: bytes.NewReader(b),
		Decode: func(b []byte) (Batch, error) { return pack.DecodeUnit(b) }}
}

// noCache is a Cache that stores nothing.
type noCache struct{}

func (noCache) Read(chunk.Ref, int, []byte) bool { return false }
func (noCache) Load([]chunk.Ref)                 {}
func (noCache) Has(chunk.ID) bool                { return false }
func (noCache) Put(chunk.Ref, []byte)            {}
func (noCache) IsLoading() bool                  { return false }

// newFetcher returns a Fetcher with short pauses between tries.
func newFetcher(source Source, cache Cache) *Fetcher {
	u := NewFetcher(source, cache)
	u.retry.pauses.First = time.Millisecond
	return u
}

// where is the unit of the tests' chunks.
var where = chunk.Unit{Pack: chunk.ID{7}, N: 3}

var encoder, _ = zstd.NewWriter(nil)

// encode returns a unit with the chunks, and references to them in the unit where.
func encode(t testing.TB, chunks ...string) (unit []byte, refs []chunk.Ref) {
	t.Helper()
	var b pack.UnitBuilder
	for _, c := range chunks {
		ref := chunk.Ref{ID: chunk.Sum([]byte(c)), Length: uint32(len(c)), Unit: where}
		b.Add(ref.ID, []byte(c))
		refs = append(refs, ref)
	}
	return b.Encode(nil, encoder), refs
}

func fetch(t testing.TB, u *Fetcher, ref chunk.Ref) (string, error) {
	t.Helper()
	dst := make([]byte, ref.Length)
	err := u.Share().Read(t.Context(), ref, 0, dst, nil)
	return string(dst), err
}
