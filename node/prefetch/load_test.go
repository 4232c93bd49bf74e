package prefetch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// Cached chunks of startup packs are loaded into memory. Packs that are wanted at mount are loaded
// only at the device's first start, other packs at each start that triggers them.
func TestLoad(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		for group := range 3 {
			b.putGroup(group)
		}
		atMount, _ := b.count(0)
		triggered, _ := b.count(1)
		for start := range 2 {
			b.Begin()
			time.Sleep(time.Second)
			if loads := b.loads(); loads != [3]int{atMount, start * triggered} {
				t.Errorf("at start %d: %v chunks were loaded, want %d and %d", start, loads, atMount, start*triggered)
			}
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if loads := b.loads(); loads != [3]int{atMount, (start + 1) * triggered} {
				t.Errorf("after the trigger of start %d: %v chunks were loaded, want %d and %d", start, loads, atMount,
					(start+1)*triggered)
			}
		}
		if b.prefetcher.Stats().Loaded == 0 {
			t.Error("the statistics have no loaded bytes")
		}
		if _, all := h.requests(); all != 0 {
			t.Errorf("%d requests for cached chunks, want none", all)
		}
		b.close(t)
	})
}

// A pack is loaded although the device was read before the pack's units were listed. When its
// missing unit is requested again, nothing is loaded a second time.
func TestLoadOnce(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		b.putGroup(0)
		all, _ := b.count(0)
		delete(b.cache.chunks, h.first.ID)
		h.fail = func(chunk.Unit) ([]byte, error) { return nil, errors.New("no route") }
		for range maxPlans {
			b.prefetcher.plans <- struct{}{}
		}
		b.Begin()
		if _, err := b.ReadAt(t.Context(), make([]byte, 10), extentOf(t, b.Device, 1).Offset); err != nil {
			t.Fatal(err)
		}
		for range maxPlans {
			<-b.prefetcher.plans
		}
		time.Sleep(time.Hour)
		if most, _ := h.requests(); most < 2 {
			t.Errorf("the missing unit was requested %d times, want several", most)
		}
		if loads := b.loads(); loads != [3]int{all - 1} {
			t.Errorf("%v chunks were loaded, want %d", loads, all-1)
		}
		b.close(t)
	})
}

// While memory is short, nothing is loaded. Otherwise no more than the limit is loaded.
func TestLoadIsBounded(t *testing.T) {
	h := newStartHub(t)
	for name, options := range map[string]Options{
		"short": {Limit: plenty, Blocked: func() error { return errors.New("no memory") }},
		"limit": {Limit: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := openStart(t, h, options)
				b.putGroup(0)
				b.Begin()
				time.Sleep(time.Second)
				loads := b.loads()
				if few := name == "limit"; loads[0] > 10 || few != (loads[0] > 0) {
					t.Errorf("%d chunks were loaded, want none if memory is short, and otherwise 1 to 10", loads[0])
				}
				b.close(t)
			})
		})
	}
}
