package completion

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/node/mount"
	"lighter/store/disk"
)

// fake is a tree of two units, a cache, the mounts, and a share that fetches into the cache.
type fake struct {
	refs   []chunk.Ref
	broken bool // the share fails
	full   bool // the cache has no room

	mu     sync.Mutex // guards what follows
	cached map[chunk.ID]bool
	locals int
}

func newFake() *fake {
	f := &fake{cached: map[chunk.ID]bool{}}
	pack := chunk.Sum([]byte("pack"))
	for i, name := range []string{"a", "b", "c"} {
		f.refs = append(f.refs, chunk.Ref{ID: chunk.Sum([]byte(name)), Length: 10,
			Unit: chunk.Unit{Pack: pack, N: uint32(i / 2)}})
	}
	return f
}

func (f *fake) Mounted() []mount.Mounted { return []mount.Mounted{{Tree: chunk.Sum([]byte("tree"))}} }
func (f *fake) HasRoom(int64) bool       { return !f.full }
func (f *fake) Stats() disk.Stats        { return disk.Stats{} }

func (f *fake) Chunks(_ context.Context, _ chunk.ID, fn func(chunk.Ref)) error {
	for _, ref := range f.refs {
		fn(ref)
	}
	return nil
}

func (f *fake) HasLocal(chunk.ID) (int64, bool)           { return 0, f.locals > 0 }
func (f *fake) MakeLocal(context.Context, chunk.ID) error { f.locals++; return nil }

// fakeTrees and fakeCache are a fake with the method Has of Trees and of Cache.
type fakeTrees struct{ *fake }

func (fakeTrees) Has(chunk.ID) bool { return true }

type fakeCache struct{ *fake }

func (f fakeCache) Has(id chunk.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cached[id]
}

func (f *fake) Prefetch(_ context.Context, ref chunk.Ref) error {
	if f.broken {
		return errors.New("no hub answers")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.refs {
		if r.Unit == ref.Unit {
			f.cached[r.ID] = true
		}
	}
	return nil
}

func (f *fake) Received() map[string]int64 { return nil }

func (f *fake) completer(o Options) *Completer {
	o.Short = func() error { return nil }
	return New(o, Parts{Trees: fakeTrees{f}, Mounts: f, Cache: fakeCache{f}, Share: func() Share { return f }},
		slog.New(slog.DiscardHandler))
}

// Fetch fetches the missing units, makes the local device, and reports at the end that all bytes
// are cached.
func TestFetch(t *testing.T) {
	f := newFake()
	f.cached[f.refs[0].ID] = true
	var last Progress
	err := f.completer(Options{Local: true}).Fetch(t.Context(), chunk.ID{}, func(p Progress) { last = p })
	if err != nil || last != (Progress{Cached: 30, All: 30}) || f.locals != 1 {
		t.Errorf("got %+v, %d local devices, %v; want 30 of 30 bytes, 1", last, f.locals, err)
	}
}

// If no hub answers, Fetch fails with the hub's error, and reports how many bytes are cached.
func TestFetchWithoutAHub(t *testing.T) {
	f := newFake()
	f.broken = true
	var last Progress
	err := f.completer(Options{}).Fetch(t.Context(), chunk.ID{}, func(p Progress) { last = p })
	if err == nil || !strings.Contains(err.Error(), "no hub answers") || last != (Progress{Cached: 0, All: 30}) {
		t.Errorf("got %+v, %v; want 0 of 30 bytes and the hub's error", last, err)
	}
}

// Mounted trees are completed only while the cache has room.
func TestCompleteMounted(t *testing.T) {
	f := newFake()
	f.full = true
	c := f.completer(Options{Complete: true})
	visits := map[chunk.ID]visit{}
	if err := c.completeAll(t.Context(), visits); !errors.As(err, new(errNotNow)) || len(f.cached) != 0 {
		t.Errorf("a full cache: got %v, %d chunks; want to wait", err, len(f.cached))
	}
	f.full = false
	if err := c.completeAll(t.Context(), visits); err != nil || len(f.cached) != 3 {
		t.Errorf("got %v, %d chunks; want all 3", err, len(f.cached))
	}
}
