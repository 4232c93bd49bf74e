package disk

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// Chunks with flipped bits and in cut files are missing. Foreign files do no harm.
func TestCacheFindsDamage(t *testing.T) {
	segmentsOf := func(dir string) []string {
		names, _ := filepath.Glob(filepath.Join(dir, "*.segment"))
		return names
	}
	store := func(t *testing.T, dir string) {
		c := open(t, dir, MinLimit)
		for i := range 30 {
			c.Put(data(i, 50_000))
		}
		c.Close()
	}
	count := func(t *testing.T, c *Cache) (n int) {
		for i := range 30 {
			if ref, plain := data(i, 50_000); has(t, c, ref, plain) {
				n++
			}
		}
		return n
	}
	t.Run("flipped bits", func(t *testing.T) {
		dir := t.TempDir()
		store(t, dir)
		r := rand.New(rand.NewPCG(4, 4))
		path := segmentsOf(dir)[0]
		b, _ := os.ReadFile(path)
		for range 10 {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := open(t, dir, MinLimit)
		if n := count(t, c); n < 20 || n == 30 {
			t.Errorf("after 10 flipped bits: got %d of 30 chunks, want 20 to 29", n)
		}
		if c.Stats().Damaged == 0 {
			t.Error("the stats do not show the damage")
		}
		for i := range 30 {
			c.Put(data(i, 50_000))
		}
		if n := count(t, c); n != 30 {
			t.Errorf("after damaged chunks were put again: got %d chunks, want 30", n)
		}
	})
	t.Run("cut while it runs", func(t *testing.T) {
		dir := t.TempDir()
		store(t, dir)
		c := open(t, dir, MinLimit)
		if err := os.Truncate(segmentsOf(dir)[0], 400_000); err != nil {
			t.Fatal(err)
		}
		if n := count(t, c); n == 0 || n == 30 {
			t.Errorf("after a cut: got %d of 30 chunks, want some, but not all", n)
		}
	})
	t.Run("records swapped", func(t *testing.T) {
		dir := t.TempDir()
		store(t, dir)
		path := segmentsOf(dir)[0]
		b, _ := os.ReadFile(path)
		size := recordSize(50_000)
		swapped := bytes.Join([][]byte{b[size : 2*size], b[:size], b[2*size:]}, nil)
		if err := os.WriteFile(path, swapped, 0o600); err != nil {
			t.Fatal(err)
		}
		if n := count(t, open(t, dir, MinLimit)); n != 28 {
			t.Errorf("got %d of 30 chunks, want 28", n)
		}
	})
	t.Run("table damaged", func(t *testing.T) {
		dir := t.TempDir()
		store(t, dir)
		tables, _ := filepath.Glob(filepath.Join(dir, "*.table"))
		b, _ := os.ReadFile(tables[0])
		b[5] ^= 1
		if err := os.WriteFile(tables[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		if n := count(t, open(t, dir, MinLimit)); n != 30 {
			t.Errorf("after a scan: got %d chunks, want 30", n)
		}
	})
	t.Run("foreign files", func(t *testing.T) {
		dir := t.TempDir()
		store(t, dir)
		for _, name := range []string{"0000000077.segment", "x.segment", "notes.txt", "99999999999999999999.segment"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("not a cache"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, "0000000078.segment"), 0o700); err != nil {
			t.Fatal(err)
		}
		if n := count(t, open(t, dir, MinLimit)); n != 30 {
			t.Errorf("beside foreign files: got %d chunks, want 30", n)
		}
		if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
			t.Error("a foreign file was removed")
		}
	})
}
