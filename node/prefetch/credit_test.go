package prefetch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// For a start that reads little of the startup packs, at most the credit and a multiple of the
// bytes that the start reads are fetched. For a start that reads all fetched bytes, all packs are
// fetched. Each start has a credit of its own.
func TestStreamWaitsForReaders(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		var order []index.Extent
		all, largest := int64(0), int64(0)
		for i := range h.extents.Extents / 3 {
			if e, err := h.extents.Extent(i); err == nil && h.group[e.ID] == 0 {
				order = append(order, e)
				all += int64(e.Length)
				largest = max(largest, int64(e.Length))
			}
		}
		fetched := func() (n int64) {
			for _, e := range order {
				if b.cache.Has(e.ID) {
					n += int64(e.Length)
				}
			}
			return n
		}
		b.startup.credit.size = all / 10
		for start := range 2 {
			b.evict(0)
			b.Begin()
			time.Sleep(time.Minute)
			if n := fetched(); n < b.startup.credit.size || n > b.startup.credit.size+largest ||
				b.startup.isRunning() {
				t.Errorf("start %d, nothing is read: %d of %d bytes were fetched, want about %d",
					start, n, all, b.startup.credit.size)
			}
			b.Begin()
			time.Sleep(time.Minute)
			if n := fetched(); n > b.startup.credit.size+largest {
				t.Errorf("start %d, nothing is read, Begin called again: %d of %d bytes were fetched, want about %d",
					start, n, all, b.startup.credit.size)
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
			if n, most := fetched(), b.startup.credit.size+startupPart*read; n < min(most, all) || n > most+largest {
				t.Fatalf("%d bytes are read: %d of %d were fetched, want about %d", read, n, all, most)
			}
		}
		b.close(t)
	})
}

// bytesOf returns the cached bytes of a group, and all of its bytes.
func (b *startDevice) bytesOf(group int) (cached, all int64) {
	for i := range b.hub.extents.Extents {
		if e, err := b.hub.extents.Extent(i); err == nil && b.hub.group[e.ID] == group {
			all += int64(e.Length)
			if b.cache.Has(e.ID) {
				cached += int64(e.Length)
			}
		}
	}
	return cached, all
}

// A stream that waits for credit continues when newer locations arrive.
func TestWaitingStreamIsReplaced(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		_, all := b.bytesOf(0)
		b.startup.credit.size = all / 10
		b.Begin()
		time.Sleep(time.Minute)
		before, _ := b.bytesOf(0)
		b.SetLocations(h.open(t))
		time.Sleep(time.Minute)
		if after, _ := b.bytesOf(0); after < before+all/10 {
			t.Errorf("%d of %d bytes were fetched, and %d with newer locations; want more", before, all, after)
		}
		b.close(t)
	})
}

// Failed requests use up no credit.
func TestFailuresUseUpNoCredit(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		_, all := b.bytesOf(0)
		b.startup.credit.size = 1
		h.fail = func(chunk.Unit) ([]byte, error) { return nil, errors.New("no route") }
		b.Begin()
		time.Sleep(10 * time.Second)
		h.mu.Lock()
		h.fail = nil
		h.mu.Unlock()
		time.Sleep(time.Minute)
		if cached, _ := b.bytesOf(0); cached == 0 {
			t.Errorf("after the failure none of %d bytes were fetched, want some", all)
		}
		b.close(t)
	})
}
