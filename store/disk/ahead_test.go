package disk

import (
	"testing"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Loaded chunks are in memory. Missing and evicted chunks are ignored.
func TestLoad(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	var refs []chunk.Ref
	for seed := range 20 {
		ref, plain := data(seed, 100_000)
		c.Put(ref, plain)
		refs = append(refs, ref)
	}
	unknown, _ := data(1000, 5)
	inMemory := func(ref chunk.Ref) bool {
		p, _ := c.index.at(keyOf(ref.ID))
		b := make([]byte, recordSize(ref.Length))
		n, err := unix.Preadv2(int(p.segment.file.Fd()), [][]byte{b}, int64(p.offset), unix.RWF_NOWAIT)
		return err == nil && n == len(b)
	}
	if err := c.active.file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(c.active.file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	c.Load(append(refs[:10:10], unknown))
	for i, ref := range refs[:10] {
		if !inMemory(ref) {
			t.Errorf("chunk %d was loaded, but is not in memory", i)
		}
	}
	c.active.file.Close()
	c.Load(refs)
}
