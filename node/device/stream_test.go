package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
)

// hub is a Source with the units of one tree: a third of its chunks is in a startup
// pack that is wanted at mount, a third in one that its first extent triggers, and a
// third in an ordinary pack.
type hub struct {
	extents   *index.Map
	locations *index.LocationsBuilder
	startups  []index.Startup
	trigger   index.Extent
	image     []byte
	units     map[chunk.Unit][]byte
	group     map[chunk.ID]int // 0: at mount, 1: triggered, 2: ordinary

	mu    sync.Mutex // guards what follows
	asked map[chunk.Unit]int
	fail  func(u chunk.Unit) ([]byte, error) // answers instead, if it is not nil and has anything to say
	hang  bool
}

var zstdEncoder, _ = zstd.NewWriter(nil)

func newStartHub(t testing.TB) *hub {
	t.Helper()
	d, s, image := buildOf(t, 200, 3000)
	h := &hub{extents: d.extents, image: image, units: map[chunk.Unit][]byte{}, group: map[chunk.ID]int{}, asked: map[chunk.Unit]int{}}
	n := h.extents.Extents
	places := map[chunk.ID]chunk.Unit{}
	for g := range 3 {
		id := chunk.Sum([]byte{byte(g)})
		var b pack.UnitBuilder
		count, size := 0, int64(0)
		flush := func() {
			if b.Len() > 0 {
				unit := b.Encode(nil, zstdEncoder)
				size += int64(len(unit))
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
			if b.Add(e.ID, s.chunks[e.ID]); b.Len() == 1 {
				flush()
			}
		}
		flush()
		switch g {
		case 0:
			h.startups = append(h.startups, index.Startup{Pack: id, Units: count, Bytes: size, AtMount: true})
		case 1:
			h.startups = append(h.startups, index.Startup{Pack: id, Units: count, Bytes: size, Triggers: []int64{n / 3}})
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

// open returns the tree's locations, as startups has them.
func (h *hub) open(t testing.TB) *index.Locations {
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

func (h *hub) Unit(ctx context.Context, u chunk.Unit, take func(int64, io.Reader) error) (string, error) {
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
		return "", context.Cause(ctx)
	}
	if err == nil && b == nil {
		err = fmt.Errorf("unit %s: %w", u, chunk.ErrNotFound)
	}
	if err != nil {
		return "", err
	}
	time.Sleep(time.Millisecond)
	return "", take(int64(len(b)), bytes.NewReader(b))
}

// Chunk is how readers get at what the packs do not give.
func (h *hub) Chunk(ctx context.Context, id chunk.ID, take func(int64, io.Reader) error) (string, error) {
	for _, b := range h.units {
		if unit, err := pack.DecodeUnit(b); err == nil {
			if _, err := unit.Lookup(id); err == nil {
				return "", take(int64(len(b)), bytes.NewReader(b))
			}
		}
	}
	return "", chunk.ErrNotFound
}

// most returns how often the unit was asked for that was most often, and how many
// requests there were.
func (h *hub) most() (most, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range maps.Values(h.asked) {
		most, all = max(most, n), all+n
	}
	return most, all
}

// keep is a store.Cache in memory, which can refuse what is put in.
type keep struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	full   bool
}

func (k *keep) Read(ref chunk.Ref, offset int, dst []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, ok := k.chunks[ref.ID]
	return ok && copy(dst, b[offset:]) == len(dst)
}

func (k *keep) Has(id chunk.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.chunks[id]
	return ok
}

func (k *keep) Put(ref chunk.Ref, plain []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.full {
		k.chunks[ref.ID] = bytes.Clone(plain)
	}
}

// begun is a device of a hub's tree.
type begun struct {
	*Device
	hub   *hub
	cache *keep
	units *store.Units
	ahead *Ahead
}

func newBegun(t testing.TB, h *hub, options AheadOptions) *begun {
	t.Helper()
	b := &begun{hub: h, cache: &keep{chunks: map[chunk.ID][]byte{}}}
	b.units = store.NewUnits(h, b.cache)
	log := slog.New(slog.DiscardHandler)
	b.ahead = NewAhead(func() Chunks { return b.units.Share() }, options, log)
	b.Device = New(h.extents, h.open(t), b.ahead, log)
	return b
}

// here counts the chunks of a group that are here, and are not.
func (b *begun) here(group int) (here, missing int) {
	for id, g := range b.hub.group {
		switch {
		case g != group:
		case b.cache.Has(id):
			here++
		default:
			missing++
		}
	}
	return here, missing
}

// evict has a group not be here any more.
func (b *begun) evict(group int) {
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	maps.DeleteFunc(b.cache.chunks, func(id chunk.ID, _ []byte) bool { return b.hub.group[id] == group })
}

// readAll reads the whole device.
func (b *begun) readAll(t *testing.T) {
	t.Helper()
	got := make([]byte, len(b.hub.image))
	for from := 0; from < len(got); from += 128 << 10 {
		to := min(len(got), from+128<<10)
		if err := b.ReadAt(t.Context(), got[from:to], int64(from)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, b.hub.image) {
		t.Error("wrong bytes")
	}
}

// left ends the device and says what it leaves.
func (b *begun) left(t *testing.T) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	b.units.Wait()
	if s := b.units.Stats(); s.InFlight != (store.GateStats{}) || s.Link.OnTheWay != 0 {
		t.Errorf("left: %+v", s)
	}
}

const plenty = 1 << 30

// Startup packs come when they are wanted and not before, each unit once; what came is
// here when it is read, and nobody waits.
func TestStartupPacks(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: plenty})
		time.Sleep(time.Minute)
		if _, all := h.most(); all != 0 {
			t.Errorf("%d requests before it began", all)
		}
		if !b.Begin() {
			t.Error("nothing is wanted at mount")
		}
		time.Sleep(time.Minute)
		atMount, missing := b.here(0)
		if others, _ := b.here(1); missing != 0 || others != 0 {
			t.Errorf("at mount: %d are here and %d missing, and %d of the other", atMount, missing, others)
		}
		b.cache.Put(chunk.Ref{ID: h.trigger.ID, Length: h.trigger.Length}, h.image[h.trigger.Offset:h.trigger.End()])
		if err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil || b.Stats().Missed != 0 {
			t.Errorf("the trigger: %v, %+v", err, b.Stats())
		}
		time.Sleep(time.Minute)
		if _, missing := b.here(1); missing != 0 {
			t.Errorf("after the trigger %d are missing", missing)
		}
		if others, _ := b.here(2); others != 0 || b.stream.armed.Load() != nil {
			t.Errorf("%d of the ordinary pack are here", others)
		}
		b.readAll(t)
		if most, _ := h.most(); most != 1 {
			t.Errorf("a unit was asked for %d times", most)
		}
		b.evict(0)
		b.evict(1)
		b.Begin()
		time.Sleep(time.Minute)
		if others, _ := b.here(1); others != 0 {
			t.Errorf("at the next start: %d of the other are here", others)
		}
		if err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for group := range 2 {
			if _, missing := b.here(group); missing != 0 {
				t.Errorf("after the next start %d of group %d are missing", missing, group)
			}
		}
		b.readAll(t)
		if y := b.ahead.Stats().Startup; y.Fetched == 0 || y.Brought == 0 || y.Used != y.Brought {
			t.Errorf("yield %+v", y)
		}
		b.left(t)
	})
}

// A device that was not told to begin does with its first read: so of what a former
// daemon mounted.
func TestStreamBeginsWithARead(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: plenty})
		if err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for group := range 2 {
			if _, missing := b.here(group); missing != 0 {
				t.Errorf("of group %d %d are missing", group, missing)
			}
		}
		b.left(t)
	})
}

// Whatever an origin or the locations say, readers get the right bytes, and what is
// asked for in vain is bounded.
func TestStreamOfLies(t *testing.T) {
	for name, lie := range map[string]func(h *hub){
		"not there": func(h *hub) { h.fail = func(chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound } },
		"another unit": func(h *hub) {
			var b pack.UnitBuilder
			b.Add(chunk.Sum([]byte("other")), []byte("other"))
			other := b.Encode(nil, zstdEncoder)
			h.fail = func(chunk.Unit) ([]byte, error) { return other, nil }
		},
		"no unit":     func(h *hub) { h.fail = func(chunk.Unit) ([]byte, error) { return []byte("garbage"), nil } },
		"no end":      func(h *hub) { h.fail = func(chunk.Unit) ([]byte, error) { return make([]byte, pack.MaxStored+1), nil } },
		"fewer units": func(h *hub) { h.startups[0].Units = 1; h.startups[0].Bytes = 1 },
		"more units":  func(h *hub) { h.startups[0].Units = 65536; h.startups[0].Bytes = 65536 * (4 << 20) },
		"one byte":    func(h *hub) { h.startups[0].Bytes, h.startups[1].Bytes = 1, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			h := newStartHub(t)
			lie(h)
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, h, AheadOptions{Limit: plenty})
				b.Begin()
				time.Sleep(time.Hour)
				if _, all := h.most(); h.fail != nil && all > streamLies+streamUnits {
					t.Errorf("%d requests for nothing", all)
				}
				h.mu.Lock()
				h.fail = func(u chunk.Unit) ([]byte, error) { // readers ask by the chunks' IDs
					if u.Pack == h.startups[0].Pack {
						return nil, chunk.ErrNotFound
					}
					return nil, nil
				}
				h.mu.Unlock()
				b.readAll(t)
				b.left(t)
			})
		})
	}
}

// While the source fails, the cache takes nothing or something is short, little is
// asked for. Then the stream goes on.
func TestStreamGoesOn(t *testing.T) {
	var short atomic.Bool
	for name, trouble := range map[string]func(b *begun, on bool){
		"failing": func(b *begun, on bool) {
			b.hub.fail = nil
			if on {
				b.hub.fail = func(chunk.Unit) ([]byte, error) { return nil, errors.New("no route") }
			}
		},
		"full":  func(b *begun, on bool) { b.cache.full = on },
		"short": func(_ *begun, on bool) { short.Store(on) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newStartHub(t)
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, h, AheadOptions{Limit: plenty, Short: func() error {
					if short.Load() {
						return errors.New("short")
					}
					return nil
				}})
				set := func(on bool) {
					h.mu.Lock()
					defer h.mu.Unlock()
					b.cache.mu.Lock()
					defer b.cache.mu.Unlock()
					trouble(b, on)
				}
				set(true)
				b.Begin()
				time.Sleep(30 * time.Second)
				if most, all := h.most(); most > 4 || all > 3*streamUnits || short.Load() && all > 0 {
					t.Errorf("%d requests in 30 s, %d for one unit", all, most)
				}
				set(false)
				time.Sleep(2 * streamRarest)
				if _, missing := b.here(0); missing != 0 {
					t.Errorf("%d are missing", missing)
				}
				b.left(t)
			})
		})
	}
}

// What is wrong for ever ends the stream.
func TestStreamGivesUp(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: 1 << 40})
		b.cache.full = true
		b.Begin()
		time.Sleep(24 * time.Hour)
		_, before := h.most()
		time.Sleep(24 * time.Hour)
		if _, after := h.most(); after != before || b.stream.isRunning() {
			t.Errorf("%d requests, and %d a day later", before, after)
		}
		b.left(t)
	})
}

// No more is fetched than is allowed, however many packs there are and whatever they
// say of themselves; nothing at all if that is nothing.
func TestStreamIsBounded(t *testing.T) {
	for _, limit := range []int64{0, 1, 300_000} {
		h := newStartHub(t)
		for i := range index.MaxStartups {
			h.startups = append(h.startups, index.Startup{Pack: chunk.Sum([]byte{2, byte(i)}), Units: 65536, Bytes: 65536 * (4 << 20), AtMount: true})
		}
		h.startups[1].AtMount = true
		synctest.Test(t, func(t *testing.T) {
			b := newBegun(t, h, AheadOptions{Limit: limit})
			b.Begin()
			time.Sleep(time.Hour)
			var came int64
			b.cache.mu.Lock()
			for _, plain := range b.cache.chunks {
				came += int64(len(plain))
			}
			b.cache.mu.Unlock()
			if came > limit || limit > 1<<17 && came == 0 {
				t.Errorf("%d bytes came, %d may", came, limit)
			}
			b.readAll(t)
			b.left(t)
		})
	}
}

// A device that is closed, and locations that are replaced, while a stream runs leave
// nothing on its way.
func TestStreamEnds(t *testing.T) {
	for _, hang := range []bool{false, true} {
		h := newStartHub(t)
		h.hang = hang
		synctest.Test(t, func(t *testing.T) {
			b := newBegun(t, h, AheadOptions{Limit: plenty})
			b.Begin()
			time.Sleep(1500 * time.Microsecond)
			if _, all := h.most(); all == 0 {
				t.Error("it has not begun")
			}
			b.left(t)
		})
	}
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: plenty})
		b.SetLocations(nil)
		b.Begin()
		time.Sleep(time.Second)
		if _, all := h.most(); all != 0 {
			t.Errorf("%d requests without locations", all)
		}
		for range 3 {
			b.SetLocations(h.open(t))
			time.Sleep(1500 * time.Microsecond)
		}
		time.Sleep(time.Second)
		if most, _ := h.most(); most != 1 {
			t.Errorf("a unit was asked for %d times", most)
		}
		if _, missing := b.here(0); missing != 0 {
			t.Errorf("%d are missing", missing)
		}
		b.left(t)
	})
}

// The read path asks whether a read triggers anything: that costs nanoseconds.
func BenchmarkTriggers(b *testing.B) {
	h := newStartHub(b)
	d := newBegun(b, h, AheadOptions{Limit: plenty})
	for name, armed := range map[string]bool{"none": false, "some": true} {
		b.Run(name, func(b *testing.B) {
			d.stream.begun = true
			d.stream.armed.Store(nil)
			if armed {
				d.stream.arm()
				d.stream.end()
			}
			for b.Loop() {
				d.stream.read(0, 4096)
			}
		})
	}
}
