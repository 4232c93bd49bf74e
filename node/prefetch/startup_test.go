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
	"lighter/node/device"
)

// Startup packs come when they are wanted and not before, each unit once; what came is
// here when it is read, and nobody waits.
func TestStartupPacks(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
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
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil || b.Stats().Missed != 0 {
			t.Errorf("the trigger: %v, %+v", err, b.Stats())
		}
		time.Sleep(time.Minute)
		if _, missing := b.here(1); missing != 0 {
			t.Errorf("after the trigger %d are missing", missing)
		}
		if others, _ := b.here(2); others != 0 || b.startup.triggers.Load() != nil {
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
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for group := range 2 {
			if _, missing := b.here(group); missing != 0 {
				t.Errorf("after the next start %d of group %d are missing", missing, group)
			}
		}
		b.readAll(t)
		if y := b.prefetcher.Stats().Startup; y.Fetched == 0 || y.Brought == 0 || y.Used != y.Brought {
			t.Errorf("yield %+v", y)
		}
		b.left(t)
	})
}

// As much counts as being on its way as the locations say of each unit.
func TestStreamCountsEachUnit(t *testing.T) {
	h := newStartHub(t)
	h.hang = true
	for n := range h.startups[0].Units {
		h.startups[0].Units[n] = 10_000 + uint32(100*n)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		b.Begin()
		time.Sleep(time.Second) // they are paced
		want := int64(0)
		for _, size := range h.startups[0].Units[:maxUnits] {
			want += int64(size)
		}
		if got := b.units.Stats().Link.InFlight; got != want {
			t.Errorf("%d bytes are on their way, not %d", got, want)
		}
		b.left(t)
	})
}

// A device that was not told to begin does with its first read: so of what a former
// daemon mounted.
func TestStreamBeginsWithARead(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
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
	for name, lie := range map[string]func(h *startHub){
		"not there": func(h *startHub) { h.fail = func(chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound } },
		"another unit": func(h *startHub) {
			var b pack.UnitBuilder
			b.Add(chunk.Sum([]byte("other")), []byte("other"))
			other := b.Encode(nil, zstdEncoder)
			h.fail = func(chunk.Unit) ([]byte, error) { return other, nil }
		},
		"no unit": func(h *startHub) { h.fail = func(chunk.Unit) ([]byte, error) { return []byte("garbage"), nil } },
		"no end": func(h *startHub) {
			h.fail = func(chunk.Unit) ([]byte, error) { return make([]byte, pack.MaxStored+1), nil }
		},
		"fewer units": func(h *startHub) { h.startups[0].Units = h.startups[0].Units[:1] },
		"more units":  func(h *startHub) { h.startups[0].Units = slices.Repeat([]uint32{4 << 20}, 50_000) },
		"one byte":    func(h *startHub) { h.sized(0, 1); h.sized(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newStartHub(t)
			lie(h)
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, h, Options{Limit: plenty})
				b.Begin()
				time.Sleep(time.Hour)
				if _, all := h.most(); h.fail != nil && all > maxInvalid+maxUnits {
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
				b := newBegun(t, h, Options{Limit: plenty, Short: func() error {
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
				if most, all := h.most(); most > 5 || all > 2*maxUnits || short.Load() && all > 0 {
					t.Errorf("%d requests in 30 s, %d for one unit", all, most)
				}
				if running := b.startup.isRunning(); running != (name == "short") {
					t.Errorf("it keeps others from reading ahead: %v", running)
				}
				set(false)
				time.Sleep(2 * maxPause)
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
		b := newBegun(t, h, Options{Limit: 1 << 40})
		b.cache.full = true
		b.Begin()
		time.Sleep(24 * time.Hour)
		_, before := h.most()
		time.Sleep(24 * time.Hour)
		if _, after := h.most(); after != before || b.startup.isRunning() {
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
			h.startups = append(h.startups, index.Startup{Pack: chunk.Sum([]byte{2, byte(i)}), Units: slices.Repeat([]uint32{4 << 20}, index.MaxUnits/index.MaxStartups), AtMount: true})
		}
		h.startups[1].AtMount = true
		synctest.Test(t, func(t *testing.T) {
			b := newBegun(t, h, Options{Limit: limit})
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
			b := newBegun(t, h, Options{Limit: plenty})
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
		b := newBegun(t, h, Options{Limit: plenty})
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
	d := newBegun(b, h, Options{Limit: plenty})
	for name, armed := range map[string]bool{"none": false, "some": true} {
		b.Run(name, func(b *testing.B) {
			d.startup.begun = true
			d.startup.triggers.Store(nil)
			if armed {
				d.startup.arm()
				d.startup.end()
			}
			for b.Loop() {
				d.startup.Observe(device.Read{Length: 4096, Missing: -1})
			}
		})
	}
}

// What was wanted last is what is being read: it comes first.
func TestStreamGoesWhereReadersAre(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		b.Begin()
		time.Sleep(1500 * time.Microsecond)
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
			t.Fatal(err)
		}
		for {
			time.Sleep(time.Millisecond)
			if _, missing := b.here(1); missing == 0 {
				break
			}
		}
		if _, missing := b.here(0); missing == 0 {
			t.Error("what was wanted before came first")
		}
		time.Sleep(time.Minute)
		if _, missing := b.here(0); missing > 0 {
			t.Errorf("%d of what was wanted before never came", missing)
		}
		b.left(t)
	})
}

// Of packs that one read wants a small one comes first, and else the one that the hub
// names first.
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
			b := newBegun(t, h, Options{Limit: plenty})
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
				t.Fatal(err)
			}
			for missing := 1; missing > 0; _, missing = b.here(first) {
				time.Sleep(time.Millisecond)
			}
			if _, missing := b.here(1 - first); missing == 0 {
				t.Errorf("%s: the other one was not later than pack %d", name, first)
			}
			time.Sleep(time.Minute)
			if _, missing := b.here(1 - first); missing > 0 {
				t.Errorf("%s: %d of the other one never came", name, missing)
			}
			b.left(t)
		})
	}
}

// With newer locations nothing more is asked for that former ones named.
func TestStreamIsReplaced(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		var asked atomic.Int32
		h.fail = func(chunk.Unit) ([]byte, error) {
			if asked.Add(1) == 2 {
				b.SetLocations(nil)
			}
			return nil, nil
		}
		b.Begin()
		time.Sleep(time.Minute)
		if _, missing := b.here(0); missing == 0 {
			t.Error("all came of a startup pack that is not named any more")
		}
		b.readAll(t)
		b.left(t)
	})
}
