package prefetch

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
)

// A startup pack is fetched when it is wanted, not before, and each of its units is requested once.
// Later reads find its chunks cached.
func TestStartupPacks(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		time.Sleep(time.Minute)
		if _, all := h.requests(); all != 0 {
			t.Errorf("%d requests before the first Begin, want none", all)
		}
		if !b.Begin() {
			t.Error("Begin: no pack is wanted at mount")
		}
		time.Sleep(time.Minute)
		atMount, missing := b.count(0)
		if others, _ := b.count(1); missing != 0 || others != 0 {
			t.Errorf("at mount: of the wanted pack %d chunks are cached and %d missing, want none missing; "+
				"%d chunks of the triggered pack are cached, want none", atMount, missing, others)
		}
		b.cache.Put(chunk.Ref{ID: h.trigger.ID, Length: h.trigger.Length}, h.image[h.trigger.Offset:h.trigger.End()])
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil || b.Stats().Missed != 0 {
			t.Errorf("a read of the trigger: error %v, %+v; want no error and no miss", err, b.Stats())
		}
		time.Sleep(time.Minute)
		if _, missing := b.count(1); missing != 0 {
			t.Errorf("after the trigger %d chunks of its pack are missing, want none", missing)
		}
		if others, _ := b.count(2); others != 0 || b.startup.triggers.Load() != nil {
			t.Errorf("%d chunks of the ordinary pack are cached, want none; or triggers are left", others)
		}
		b.readAll(t)
		if most, _ := h.requests(); most != 1 {
			t.Errorf("a unit was requested %d times, want once", most)
		}
		b.evict(0)
		b.evict(1)
		b.Begin()
		time.Sleep(time.Minute)
		if others, _ := b.count(1); others != 0 {
			t.Errorf("at the next start: %d chunks of the triggered pack are cached, want none", others)
		}
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for group := range 2 {
			if _, missing := b.count(group); missing != 0 {
				t.Errorf("after the next start %d chunks of group %d are missing, want none", missing, group)
			}
		}
		b.readAll(t)
		if y := b.prefetcher.Stats().Startup; y.Fetched == 0 || y.Added == 0 || y.Used != y.Added {
			t.Errorf("yield %+v, want that all requested bytes are used", y)
		}
		b.close(t)
	})
}

// The bytes in flight are the sums of the sizes of units that the locations name.
func TestStreamCountsUnitSizes(t *testing.T) {
	h := newStartHub(t)
	h.hang = true
	for n := range h.startups[0].Units {
		h.startups[0].Units[n] = 10_000 + uint32(100*n)
	}
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		b.Begin()
		synctest.Wait() // all requests that have room are in flight
		want := int64(0)
		for _, size := range h.startups[0].Units[:maxUnits] {
			want += int64(size)
		}
		if got := b.units.Stats().Link.InFlight; got != want {
			t.Errorf("%d bytes are in flight, want %d", got, want)
		}
		b.close(t)
	})
}

// After a crash, the cache is loaded while the first reads come. Startup packs wait until the cache
// knows its chunks, so they are not fetched again. They do not wait long.
func TestStartupPacksWaitForTheCache(t *testing.T) {
	h := newStartHub(t)
	for loading, cached := range map[time.Duration]bool{maxLoading / 2: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			b := openStart(t, h, Options{Limit: plenty})
			b.putGroup(0)
			b.cache.loading.Store(true)
			loaded := time.AfterFunc(loading, func() { b.cache.loading.Store(false) })
			_, before := h.requests()
			b.Begin()
			time.Sleep(2 * maxLoading)
			if _, all := h.requests(); (all == before) != cached {
				t.Errorf("a cache that loads for %s: %d requests, want requests only if it loads too long", loading,
					all-before)
			}
			if got := b.loads()[0] > 0; cached && !got {
				t.Error("the cached pack was not loaded into memory")
			}
			loaded.Stop()
			b.close(t)
		})
	}
}

// If Begin is not called, the first read starts the stream: a previous daemon may have mounted the
// tree.
func TestStreamBeginsWithARead(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for group := range 2 {
			if _, missing := b.count(group); missing != 0 {
				t.Errorf("%d chunks of group %d are missing, want none", missing, group)
			}
		}
		b.close(t)
	})
}

// If units or locations are wrong, readers still get the right bytes, and the number of useless
// requests is bounded.
func TestStreamOfInvalidUnits(t *testing.T) {
	for name, spoil := range map[string]func(h *startHub){
		"missing": func(h *startHub) { h.fail = func(chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound } },
		"another unit": func(h *startHub) {
			var b pack.UnitBuilder
			b.Add(chunk.Sum([]byte("other")), []byte("other"))
			other := b.Encode(nil, zstdEncoder)
			h.fail = func(chunk.Unit) ([]byte, error) { return other, nil }
		},
		"garbage": func(h *startHub) { h.fail = func(chunk.Unit) ([]byte, error) { return []byte("garbage"), nil } },
		"endless": func(h *startHub) {
			h.fail = func(chunk.Unit) ([]byte, error) { return make([]byte, pack.MaxStored+1), nil }
		},
		"fewer units": func(h *startHub) { h.startups[0].Units = h.startups[0].Units[:1] },
		"more units":  func(h *startHub) { h.startups[0].Units = slices.Repeat([]uint32{4 << 20}, 50_000) },
		"one byte":    func(h *startHub) { h.sized(0, 1); h.sized(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newStartHub(t)
			spoil(h)
			synctest.Test(t, func(t *testing.T) {
				b := openStart(t, h, Options{Limit: plenty})
				b.Begin()
				time.Sleep(time.Hour)
				if _, all := h.requests(); h.fail != nil && all > maxInvalid+maxUnits {
					t.Errorf("%d useless requests, want at most %d", all, maxInvalid+maxUnits)
				}
				h.mu.Lock()
				h.fail = func(u chunk.Unit) ([]byte, error) { // so that readers request chunks by their IDs
					if u.Pack == h.startups[0].Pack {
						return nil, chunk.ErrNotFound
					}
					return nil, nil
				}
				h.mu.Unlock()
				b.readAll(t)
				b.close(t)
			})
		})
	}
}

// The stream requests little while the source fails, while the cache stores nothing, and while
// memory is short. It continues afterwards.
func TestStreamGoesOn(t *testing.T) {
	var short atomic.Bool
	for name, fault := range map[string]func(b *startDevice, on bool){
		"failing": func(b *startDevice, on bool) {
			b.hub.fail = nil
			if on {
				b.hub.fail = func(chunk.Unit) ([]byte, error) { return nil, errors.New("no route") }
			}
		},
		"full":  func(b *startDevice, on bool) { b.cache.full = on },
		"short": func(_ *startDevice, on bool) { short.Store(on) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newStartHub(t)
			synctest.Test(t, func(t *testing.T) {
				b := openStart(t, h, Options{Limit: plenty, Blocked: func() error {
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
					fault(b, on)
				}
				set(true)
				b.Begin()
				time.Sleep(30 * time.Second)
				if most, all := h.requests(); most > 5 || all > 2*maxUnits || short.Load() && all > 0 {
					t.Errorf("%d requests in 30 s, %d of them for one unit; want at most %d and 5", all, most,
						2*maxUnits)
				}
				if running := b.startup.isRunning(); running != (name == "short") {
					t.Errorf("isRunning: %v, want true only while memory is short", running)
				}
				set(false)
				time.Sleep(2 * maxPause)
				if _, missing := b.count(0); missing != 0 {
					t.Errorf("after the fault %d chunks are missing, want none", missing)
				}
				b.close(t)
			})
		})
	}
}

// A permanent failure ends the stream.
func TestStreamGivesUp(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: 1 << 40})
		b.cache.full = true
		b.Begin()
		time.Sleep(24 * time.Hour)
		_, before := h.requests()
		time.Sleep(24 * time.Hour)
		if _, after := h.requests(); after != before || b.startup.isRunning() {
			t.Errorf("%d requests, and %d a day later; want no more", before, after)
		}
		b.close(t)
	})
}

// The bytes that are fetched do not exceed the limit, whatever the number and sizes of the packs.
func TestStreamIsBounded(t *testing.T) {
	for _, limit := range []int64{0, 1, 300_000} {
		h := newStartHub(t)
		for i := range index.MaxStartups {
			units := slices.Repeat([]uint32{4 << 20}, index.MaxUnits/index.MaxStartups)
			pack := chunk.Sum([]byte{2, byte(i)})
			h.startups = append(h.startups, index.Startup{Pack: pack, Units: units, AtMount: true})
		}
		h.startups[1].AtMount = true
		synctest.Test(t, func(t *testing.T) {
			b := openStart(t, h, Options{Limit: limit})
			b.Begin()
			time.Sleep(time.Hour)
			var fetched int64
			b.cache.mu.Lock()
			for _, plain := range b.cache.chunks {
				fetched += int64(len(plain))
			}
			b.cache.mu.Unlock()
			if fetched > limit || limit > 1<<17 && fetched == 0 {
				t.Errorf("%d bytes were fetched, want some if the limit allows, and at most %d", fetched, limit)
			}
			b.readAll(t)
			b.close(t)
		})
	}
}

// If a device is closed during a stream, nothing stays in flight. If its locations are replaced
// during a stream, the stream continues, and no unit is requested twice.
func TestStreamEnds(t *testing.T) {
	for _, hang := range []bool{false, true} {
		h := newStartHub(t)
		h.hang = hang
		synctest.Test(t, func(t *testing.T) {
			b := openStart(t, h, Options{Limit: plenty})
			b.Begin()
			time.Sleep(1500 * time.Microsecond)
			if _, all := h.requests(); all == 0 {
				t.Error("no requests after Begin")
			}
			b.close(t)
		})
	}
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		b.SetLocations(nil)
		b.Begin()
		time.Sleep(time.Second)
		if _, all := h.requests(); all != 0 {
			t.Errorf("%d requests without locations, want none", all)
		}
		for range 3 {
			b.SetLocations(h.open(t))
			time.Sleep(1500 * time.Microsecond)
		}
		time.Sleep(time.Second)
		if most, _ := h.requests(); most != 1 {
			t.Errorf("a unit was requested %d times, want once", most)
		}
		if _, missing := b.count(0); missing != 0 {
			t.Errorf("%d chunks are missing, want none", missing)
		}
		b.close(t)
	})
}

// The pack that was wanted last is fetched first, because it is being read now.
func TestStreamFollowsReaders(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		b.Begin()
		time.Sleep(1500 * time.Microsecond)
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Fatal(err)
		}
		for {
			time.Sleep(time.Millisecond)
			if _, missing := b.count(1); missing == 0 {
				break
			}
		}
		if _, missing := b.count(0); missing == 0 {
			t.Error("the pack that was wanted before was fetched first")
		}
		time.Sleep(time.Minute)
		if _, missing := b.count(0); missing > 0 {
			t.Errorf("%d chunks of the pack that was wanted before are missing, want none", missing)
		}
		b.close(t)
	})
}

// If a read triggers several packs, small packs are fetched first. The others are fetched in the
// hub's order.
func TestSmallPacksComeFirst(t *testing.T) {
	for name, test := range map[string]struct {
		bytes [2]int
		first int
	}{
		"in order": {[2]int{3000, 2000}, 0},
		"small":    {[2]int{3000, 100}, 1},
		"large":    {[2]int{100, 3000}, 0},
	} {
		first := test.first
		h := newStartHub(t)
		h.startups[0].AtMount, h.startups[0].Triggers = false, h.startups[1].Triggers
		h.sized(0, test.bytes[0])
		h.sized(1, test.bytes[1])
		synctest.Test(t, func(t *testing.T) {
			b := openStart(t, h, Options{Limit: plenty})
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
				t.Fatal(err)
			}
			for missing := 1; missing > 0; _, missing = b.count(first) {
				time.Sleep(time.Millisecond)
			}
			if _, missing := b.count(1 - first); missing == 0 {
				t.Errorf("%s: both packs were fetched at the same time, want pack %d first", name, first)
			}
			time.Sleep(time.Minute)
			if _, missing := b.count(1 - first); missing > 0 {
				t.Errorf("%s: %d chunks of the second pack are missing, want none", name, missing)
			}
			b.close(t)
		})
	}
}

// After newer locations have arrived, no pack is requested that only the previous locations named.
func TestStreamIsReplaced(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		var asked atomic.Int32
		h.fail = func(chunk.Unit) ([]byte, error) {
			if asked.Add(1) == 2 {
				b.SetLocations(nil)
			}
			return nil, nil
		}
		b.Begin()
		time.Sleep(time.Minute)
		if _, missing := b.count(0); missing == 0 {
			t.Error("a startup pack was fetched wholly although the new locations do not name it")
		}
		b.readAll(t)
		b.close(t)
	})
}

// A unit that does not fit into the budget leaves the budget to smaller units.
func TestBudgetIsLeftToSmallerUnits(t *testing.T) {
	s := &startup{left: 100}
	for _, c := range []struct {
		bytes int64
		want  bool
	}{{101, false}, {60, true}, {41, false}, {40, true}, {1, false}} {
		if got := s.spend(c.bytes); got != c.want {
			t.Errorf("%d bytes fit: %v, want %v", c.bytes, got, c.want)
		}
	}
	s.charge(50) // a unit was larger than announced
	if s.charge(-60); !s.spend(10) || s.left != 0 {
		t.Errorf("%d bytes are left, want none", s.left)
	}
}
