package upstream

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Bounds bounds the layers that a process fetches at a time and keeps, for all its domains.
type Bounds struct {
	mu     sync.Mutex // guards the kept layers, and the fetches of all readers
	layers class      // of images that the hub has
	passed class      // see Reader.Pass
}

// NewBounds returns the bounds of a process. passedBytes bounds the bytes of passed layers that are
// kept without a reader.
func NewBounds(passedBytes int64) *Bounds {
	return &Bounds{
		layers: class{slots: semaphore.NewWeighted(8), keep: time.Minute, most: 16, mostBytes: 1 << 62},
		passed: class{slots: semaphore.NewWeighted(32), patience: 20 * time.Second, keep: 15 * time.Minute, most: 1024,
			mostBytes: passedBytes},
	}
}

// class bounds layers of one kind. Bounds.mu guards kept and bytes.
type class struct {
	slots     *semaphore.Weighted // fetches at a time; further ones wait
	patience  time.Duration       // how long a reader waits for the first bytes; 0: no limit
	keep      time.Duration       // how long a whole layer stays on the disk after its last reader has gone
	most      int                 // layers that are kept without a reader
	mostBytes int64               // of these
	kept      []*fetch            // whole layers without readers, the oldest first
	bytes     int64               // of kept
}

// put adds a layer to the kept ones, and forgets the oldest beyond the bounds.
func (c *class) put(f *fetch) {
	c.kept = append(c.kept, f)
	c.bytes += f.size
	for len(c.kept) > c.most || len(c.kept) > 0 && c.bytes > c.mostBytes {
		c.forgetFirst()
	}
}

// take removes a layer from the kept ones. It reports whether the layer was one of them.
func (c *class) take(f *fetch) bool {
	i := slices.Index(c.kept, f)
	if i < 0 {
		return false
	}
	c.kept = slices.Delete(c.kept, i, i+1)
	c.bytes -= f.size
	return true
}

func (c *class) forgetFirst() {
	f := c.kept[0]
	c.take(f)
	f.expiry.Stop()
	f.forget()
}

// drop forgets the kept layers of a reader.
func (c *class) drop(r *Reader) {
	for _, f := range slices.Clone(c.kept) {
		if f.reader == r && c.take(f) {
			f.expiry.Stop()
			f.forget()
		}
	}
}

// evict forgets the passed layer that was kept longest. It reports false if there is none.
func (b *Bounds) evict() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.passed.kept) == 0 {
		return false
	}
	b.passed.forgetFirst()
	return true
}
