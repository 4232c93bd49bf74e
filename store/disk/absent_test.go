package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
)

// A cache that cannot be opened at first has all its chunks once it can.
func TestAbsentCacheComesBack(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, MinLimit)
	for i := range 5 {
		c.Put(data(i, 10_000))
	}
	_, err := Open(dir, Limits{Size: MinLimit}, quiet)
	if err == nil {
		t.Fatal("Open of a cache that is in use: got no error")
	}
	absent := absentFor(time.Millisecond, err, dir, Limits{Size: MinLimit}, quiet)
	absent.Put(data(10, 10_000))
	if s := absent.Stats(); s.Absent == "" || s.Chunks > 0 || s.Off() == "" {
		t.Fatalf("stats of an absent cache: got %+v, want a reason and no chunks", s)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the cache is open", func() bool { s := absent.Stats(); return s.Off() == "" })
	absent.Put(data(5, 10_000))
	if err := absent.Pin([32]byte{1}, "x", setOf(0, 6, 10_000)); err != nil {
		t.Error(err)
	}
	if n := countRange(t, absent, 0, 6, 10_000); n != 6 {
		t.Errorf("got %d chunks, want 6", n)
	}
	if err := absent.Close(); err != nil {
		t.Fatal(err)
	}
	if n := countRange(t, open(t, dir, MinLimit), 0, 6, 10_000); n != 6 {
		t.Errorf("after a restart: got %d chunks, want 6", n)
	}
}

// An absent cache can be closed.
func TestAbsentCacheIsClosed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file", "cache")
	if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := absentFor(time.Millisecond, errors.New("not yet"), dir, Limits{Size: MinLimit}, quiet)
	eventually.Holds(t, "opening was tried", func() bool { return c.Stats().Absent != "not yet" })
	if err := c.Close(); err != nil || c.Stats().Absent == "" {
		t.Errorf("Close of an absent cache: got %v, %+v; want no error, and a cache that is still absent",
			err, c.Stats())
	}
}
