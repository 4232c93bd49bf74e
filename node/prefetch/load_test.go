package prefetch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// What a start needs and is here is read from the disk before it asks: what is wanted at
// mount at the device's first start alone, what is triggered at each that triggers it.
func TestLoad(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		for group := range 3 {
			b.bring(group)
		}
		atMount, _ := b.here(0)
		triggered, _ := b.here(1)
		for start := range 2 {
			b.Begin()
			time.Sleep(time.Second)
			if loads := b.loads(); loads != [3]int{atMount, start * triggered} {
				t.Errorf("at start %d: %v were loaded of %d and %d", start, loads, atMount, triggered)
			}
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if loads := b.loads(); loads != [3]int{atMount, (start + 1) * triggered} {
				t.Errorf("after the trigger of start %d: %v were loaded of %d and %d", start, loads, atMount, triggered)
			}
		}
		if b.prefetcher.Stats().Loaded == 0 {
			t.Error("nothing is said to have been loaded")
		}
		if _, all := h.most(); all != 0 {
			t.Errorf("%d requests for what is here", all)
		}
		b.left(t)
	})
}

// A read that comes before it is known what there is to load changes nothing, and a
// stream that has to try again reads nothing again.
func TestLoadOnce(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		b.bring(0)
		all, _ := b.here(0)
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
		if most, _ := h.most(); most < 2 {
			t.Errorf("what is missing was asked for %d times", most)
		}
		if loads := b.loads(); loads != [3]int{all - 1} {
			t.Errorf("%v were loaded of %d", loads, all-1)
		}
		b.left(t)
	})
}

// Nothing is read ahead without memory for it, and no more than the limit.
func TestLoadIsBounded(t *testing.T) {
	h := newStartHub(t)
	for name, options := range map[string]Options{
		"short": {Limit: plenty, Short: func() error { return errors.New("no memory") }},
		"limit": {Limit: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, h, options)
				b.bring(0)
				b.Begin()
				time.Sleep(time.Second)
				loads := b.loads()
				if few := name == "limit"; loads[0] > 10 || few != (loads[0] > 0) {
					t.Errorf("%d chunks were loaded", loads[0])
				}
				b.left(t)
			})
		})
	}
}
