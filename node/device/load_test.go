package device

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What a start needs and is here is read from the disk before it asks: what is wanted at
// mount at the device's first start alone, what is triggered at each that triggers it.
func TestLoad(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: plenty})
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
			if err := b.ReadAt(t.Context(), make([]byte, 10), h.trigger.Offset); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if loads := b.loads(); loads != [3]int{atMount, (start + 1) * triggered} {
				t.Errorf("after the trigger of start %d: %v were loaded of %d and %d", start, loads, atMount, triggered)
			}
		}
		if b.ahead.Stats().Loaded == 0 {
			t.Error("nothing is said to have been loaded")
		}
		if _, all := h.most(); all != 0 {
			t.Errorf("%d requests for what is here", all)
		}
		b.left(t)
	})
}

// Nothing is read ahead without memory for it, and no more than the limit.
func TestLoadIsBounded(t *testing.T) {
	h := newStartHub(t)
	for name, options := range map[string]AheadOptions{
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
