package prefetch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// A start that leaves the way of those before it gets no more than a bounded multiple of
// what it reads; one that stays on it gets all; and the next one begins anew.
func TestStreamWaitsForReaders(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		var order []index.Extent
		all, largest := int64(0), int64(0)
		for i := range h.extents.Extents / 3 {
			if e, err := h.extents.Extent(i); err == nil && h.group[e.ID] == 0 {
				order = append(order, e)
				all += int64(e.Length)
				largest = max(largest, int64(e.Length))
			}
		}
		came := func() (n int64) {
			for _, e := range order {
				if b.cache.Has(e.ID) {
					n += int64(e.Length)
				}
			}
			return n
		}
		b.startup.credit.perPack = all / 10
		for start := range 2 {
			b.evict(0)
			b.Begin()
			time.Sleep(time.Minute)
			if n := came(); n < b.startup.credit.perPack || n > b.startup.credit.perPack+largest || b.startup.isRunning() {
				t.Errorf("start %d, nothing is read: %d of %d bytes came, %d may", start, n, all, b.startup.credit.perPack)
			}
			b.Begin()
			time.Sleep(time.Minute)
			if n := came(); n > b.startup.credit.perPack+largest {
				t.Errorf("start %d, nothing is read, begun again: %d of %d bytes came, %d may", start, n, all, b.startup.credit.perPack)
			}
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), int64(len(h.image))-10); err != nil {
				t.Fatal(err)
			}
		}
		read := int64(0)
		for _, e := range order {
			if _, err := b.ReadAt(t.Context(), make([]byte, 10), e.Offset); err != nil {
				t.Fatal(err)
			}
			read += int64(e.Length)
			time.Sleep(time.Second)
			if n, most := came(), b.startup.credit.perPack+startupPart*read; n < min(most, all) || n > most+largest {
				t.Fatalf("%d bytes are read: %d of %d came, %d may", read, n, all, most)
			}
		}
		b.left(t)
	})
}

// cameOf returns how many bytes of a group are here, and how many it has.
func (b *begun) cameOf(group int) (came, all int64) {
	for i := range b.hub.extents.Extents {
		if e, err := b.hub.extents.Extent(i); err == nil && b.hub.group[e.ID] == group {
			all += int64(e.Length)
			if b.cache.Has(e.ID) {
				came += int64(e.Length)
			}
		}
	}
	return came, all
}

// Newer locations are followed, also by a stream that waits for readers.
func TestStreamThatWaitsIsReplaced(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		_, all := b.cameOf(0)
		b.startup.credit.perPack = all / 10
		b.Begin()
		time.Sleep(time.Minute)
		before, _ := b.cameOf(0)
		b.SetLocations(h.open(t))
		time.Sleep(time.Minute)
		if after, _ := b.cameOf(0); after < before+all/10 {
			t.Errorf("%d of %d bytes came, and %d with newer locations", before, all, after)
		}
		b.left(t)
	})
}

// What did not come uses up no credit.
func TestFailuresUseUpNoCredit(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, Options{Limit: plenty})
		_, all := b.cameOf(0)
		b.startup.credit.perPack = 1
		h.fail = func(chunk.Unit) ([]byte, error) { return nil, errors.New("no route") }
		b.Begin()
		time.Sleep(10 * time.Second)
		h.mu.Lock()
		h.fail = nil
		h.mu.Unlock()
		time.Sleep(time.Minute)
		if came, _ := b.cameOf(0); came == 0 {
			t.Errorf("after a failure nothing came of %d bytes", all)
		}
		b.left(t)
	})
}
