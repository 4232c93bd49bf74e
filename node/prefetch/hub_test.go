package prefetch

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/test/testkit/filetree"
)

// startHub is a store.Source with the units of one tree. A third of the tree's chunks is in a
// startup pack that is wanted at mount. A third is in a startup pack that a read of its first
// extent triggers. The last third is in an ordinary pack.
type startHub struct {
	extents   *index.Map
	locations *index.LocationsBuilder
	startups  []index.Startup
	first     index.Extent // first extent of the pack that is wanted at mount
	trigger   index.Extent // first extent of the triggered pack
	image     []byte
	units     map[chunk.Unit][]byte
	group     map[chunk.ID]int // by chunk: 0: pack that is wanted at mount, 1: triggered pack, 2: ordinary pack

	mu    sync.Mutex                         // guards what follows
	asked map[chunk.Unit]int                 // number of requests for each unit
	fail  func(u chunk.Unit) ([]byte, error) // if it returns bytes or an error, these are the answer
	hang  bool                               // requests are not answered
}

var zstdEncoder, _ = zstd.NewWriter(nil)

func newStartHub(t testing.TB) *startHub {
	t.Helper()
	tree := filetree.New(t, 200, 3000)
	h := &startHub{extents: tree.Extents, image: tree.Image,
		units: map[chunk.Unit][]byte{}, group: map[chunk.ID]int{}, asked: map[chunk.Unit]int{}}
	n := h.extents.Extents
	places := map[chunk.ID]chunk.Unit{}
	for g := range 3 {
		id := chunk.Sum([]byte{byte(g)})
		var b pack.UnitBuilder
		count, sizes := 0, []uint32(nil)
		flush := func() {
			if b.Len() > 0 {
				unit := b.Encode(nil, zstdEncoder)
				sizes = append(sizes, uint32(len(unit)))
				h.units[chunk.Unit{Pack: id, N: uint32(count)}] = unit
				count++
				b.Reset()
			}
		}
		for i := n * int64(g) / 3; i < n*int64(g+1)/3; i++ {
			e, err := h.extents.Extent(i)
			if err != nil {
				t.Fatal(err)
			}
			if _, known := places[e.ID]; known {
				continue
			}
			places[e.ID], h.group[e.ID] = chunk.Unit{Pack: id, N: uint32(count)}, g
			if b.Add(e.ID, tree.Chunks[e.ID]); b.Len() == 1 {
				flush()
			}
		}
		flush()
		switch g {
		case 0:
			h.first, _ = h.extents.Extent(0)
			h.startups = append(h.startups, index.Startup{Pack: id, Units: sizes, AtMount: true})
		case 1:
			h.startups = append(h.startups, index.Startup{Pack: id, Units: sizes, Triggers: []int64{n / 3}})
			h.trigger, _ = h.extents.Extent(n / 3)
		}
	}
	h.locations = index.NewLocations(h.extents.ID())
	for i := range n {
		e, err := h.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		h.locations.Add(places[e.ID])
	}
	return h
}

// sized sets the size, in the locations, of each unit of a startup pack.
func (h *startHub) sized(pack, n int) {
	h.startups[pack].Units = slices.Repeat([]uint32{uint32(n)}, len(h.startups[pack].Units))
}

// open returns locations with the packs in startups.
func (h *startHub) open(t testing.TB) *index.Locations {
	t.Helper()
	for _, s := range h.startups {
		h.locations.Startup(s)
	}
	b := h.locations.Encode()
	l, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), h.extents.ID(), h.extents.Extents)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (h *startHub) FetchUnit(ctx context.Context, u chunk.Unit, take func(store.Answer) error) error {
	h.mu.Lock()
	h.asked[u]++
	b, err := h.units[u], error(nil)
	if h.fail != nil {
		if other, failed := h.fail(u); other != nil || failed != nil {
			b, err = other, failed
		}
	}
	hang := h.hang
	h.mu.Unlock()
	if hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err == nil && b == nil {
		err = fmt.Errorf("unit %s: %w", u, chunk.ErrNotFound)
	}
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	return take(unitAnswer(b))
}

// Fetch finds a chunk by its ID, for readers that cannot get the chunk from its unit.
func (h *startHub) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	for _, b := range h.units {
		if unit, err := pack.DecodeUnit(b); err == nil {
			if _, err := unit.Lookup(ref.ID); err == nil {
				return take(unitAnswer(b))
			}
		}
	}
	return chunk.ErrNotFound
}

func unitAnswer(b []byte) store.Answer {
	return store.Answer{Length: int64(len(b)), Body: bytes.NewReader(b),
		Decode: func(b []byte) (store.Batch, error) { return pack.DecodeUnit(b) }}
}

// requests returns the number of requests for the unit that was requested most often, and of all
// requests.
func (h *startHub) requests() (most, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range maps.Values(h.asked) {
		most, all = max(most, n), all+n
	}
	return most, all
}

// memoryCache is a store.Cache in memory. If it is full, it stores nothing. While it is loading, it
// does not know its chunks.
type memoryCache struct {
	loading atomic.Bool

	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	full   bool
	loaded map[chunk.ID]int // how often each chunk was loaded
}

func (k *memoryCache) Load(refs []chunk.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range refs {
		k.loaded[ref.ID]++
	}
}

func (k *memoryCache) Read(ref chunk.Ref, offset int, dst []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, ok := k.chunks[ref.ID]
	return ok && copy(dst, b[offset:]) == len(dst)
}

func (k *memoryCache) Has(id chunk.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.chunks[id]
	return ok && !k.IsLoading()
}

func (k *memoryCache) IsLoading() bool { return k.loading.Load() }

func (k *memoryCache) Put(ref chunk.Ref, plain []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.full {
		k.chunks[ref.ID] = bytes.Clone(plain)
	}
}

// startDevice is a device of a hub's tree.
type startDevice struct {
	*Device
	hub        *startHub
	cache      *memoryCache
	units      *store.Fetcher
	prefetcher *Prefetcher
}

func openStart(t testing.TB, h *startHub, options Options) *startDevice {
	t.Helper()
	b := &startDevice{hub: h, cache: &memoryCache{chunks: map[chunk.ID][]byte{}, loaded: map[chunk.ID]int{}}}
	b.units = store.NewFetcher(h, b.cache)
	b.prefetcher = New(func() Source { return b.units.Share() }, options, quiet)
	b.Device = b.prefetcher.Open(h.extents, h.open(t), quiet)
	return b
}

// count returns how many chunks of a group are cached, and how many are missing.
func (b *startDevice) count(group int) (cached, missing int) {
	for id, g := range b.hub.group {
		switch {
		case g != group:
		case b.cache.Has(id):
			cached++
		default:
			missing++
		}
	}
	return cached, missing
}

// evict removes a group from the cache.
func (b *startDevice) evict(group int) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	maps.DeleteFunc(b.cache.chunks, func(id chunk.ID, _ []byte) bool { return b.hub.group[id] == group })
}

// readAll reads the whole device.
func (b *startDevice) readAll(t *testing.T) {
	t.Helper()
	got := make([]byte, len(b.hub.image))
	for from := 0; from < len(got); from += 128 << 10 {
		to := min(len(got), from+128<<10)
		if _, err := b.ReadAt(t.Context(), got[from:to], int64(from)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, b.hub.image) {
		t.Error("the device does not have the bytes of the image")
	}
}

// close closes the device. The test fails if a request stays in flight.
func (b *startDevice) close(t *testing.T) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	b.units.Wait()
	if s := b.units.Stats(); s.InFlight != (store.GateStats{}) || s.Link.InFlight != 0 {
		t.Errorf("still in flight: %+v, want nothing", s)
	}
}

const plenty = 1 << 30

// putGroup puts the chunks of a group into the cache.
func (b *startDevice) putGroup(group int) {
	for i := range b.hub.extents.Extents {
		if e, err := b.hub.extents.Extent(i); err == nil && b.hub.group[e.ID] == group {
			b.cache.Put(chunk.Ref{ID: e.ID, Length: e.Length}, b.hub.image[e.Offset:e.End()])
		}
	}
}

// loads returns how many chunks of each group were loaded. A chunk that was loaded twice counts
// twice.
func (b *startDevice) loads() (chunks [3]int) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	for id, n := range b.cache.loaded {
		chunks[b.hub.group[id]] += n
	}
	return chunks
}
