package disk

import (
	"os"
	"testing"

	"lighter/format/chunk"
)

// fill makes a cache with a few sealed segments, and returns its chunks.
func fill(t *testing.T, dir string) (*Cache, []chunk.Ref) {
	c := openSmall(t, dir, Limits{Size: MinLimit}, 100_000)
	var refs []chunk.Ref
	for i := range 10 {
		ref, plain := data(i, 40_000)
		c.Put(ref, plain)
		refs = append(refs, ref)
	}
	if len(c.sealed) != 4 {
		t.Fatalf("got %d sealed segments, want 4", len(c.sealed))
	}
	return c, refs
}

// closeBreaker ends the pause after failed writes, so that the next Put writes.
func (c *Cache) closeBreaker() { c.writes.until.Store(0) }

// countThere returns how many of the chunks can be read.
func countThere(c *Cache, refs []chunk.Ref) (n int) {
	for _, ref := range refs {
		if c.Read(ref, 0, make([]byte, ref.Length)) {
			n++
		}
	}
	return n
}

func TestDiskThatCannotBeWrittenIsRead(t *testing.T) {
	c, refs := fill(t, t.TempDir())
	readOnly, err := os.Open(c.active.path + ".segment") // every write fails from here on
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	c.active.file = readOnly
	for i := range 20 {
		c.closeBreaker()
		c.Put(data(i+100, 100))
	}
	if c.Stats().Failed != 20 {
		t.Errorf("got %d failures in the stats, want 20", c.Stats().Failed)
	}
	if n := countThere(c, refs); n != len(refs) {
		t.Errorf("got %d chunks, want %d", n, len(refs))
	}
}

// If a write fails because the disk is full, the cache evicts a segment. The breaker of writes
// opens only when nothing can be evicted.
func TestFullDiskEvicts(t *testing.T) {
	c, refs := fill(t, t.TempDir())
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c.active.file = full
	c.Put(data(100, 100))
	if n := countThere(c, refs); n != len(refs)-2 || len(c.sealed) != 3 {
		t.Errorf("got %d chunks and %d sealed segments left, want %d and 3", n, len(c.sealed), len(refs)-2)
	}
	for range 3 {
		c.Put(data(100, 100))
	}
	if c.isOff() {
		t.Error("the breaker is open although something could be evicted")
	}
	if c.Put(data(100, 100)); !c.isOff() {
		t.Error("the breaker is closed although nothing can be evicted")
	}
}

// The bytes of segments whose files cannot be removed stay counted, and their chunks can be read.
func TestSegmentsThatCannotBeRemovedCount(t *testing.T) {
	c, refs := fill(t, t.TempDir())
	used := c.Stats().Used
	c.slow.Lock()
	c.mu.Lock()
	for _, s := range append(c.sealed, c.active) {
		s.path = "/dev/null/no directory"
	}
	c.limits.Size, c.room = used, used
	c.mu.Unlock()
	c.slow.Unlock()
	for i := range 10 {
		c.closeBreaker()
		c.Put(data(i+100, 40_000))
	}
	if c.Stats().Used < used {
		t.Error("a segment that cannot be removed is not counted")
	}
	if n := countThere(c, refs); n != len(refs) {
		t.Errorf("got %d chunks, want %d", n, len(refs))
	}
}
