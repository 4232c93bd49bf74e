//go:build e2e

package system

import (
	"os"
	"path/filepath"
	"testing"

	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// The cache's segments are damaged while a container runs. The container reads the right bytes, and
// the status shows the damage.
func TestDamagedCache(t *testing.T) {
	s := start(t, site.Options{}, "+python")
	pull(t, s, site.Lighter, "python")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	const sum = "find /usr/lib/python3 /usr/bin -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
	want, err := c.Exec(t.Context(), "sh", "-c", sum)
	if err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "cache/*.segment"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("found no segments of the cache (%v), want some", err)
	}
	for i, name := range segments {
		damage(t, name, i%2 == 0)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	got, err := c.Exec(t.Context(), "sh", "-c", sum)
	if err != nil || got != want {
		t.Errorf("digest of the files with a damaged cache: got %q, want %q (%v)", got, want, err)
	}
	if sitetest.Status(t, s).Cache.Damaged == 0 {
		t.Error("the status shows no damaged chunks in the cache, want some")
	}
}

// damage flips a bit in every 64 KiB of a file, or removes the file's second half.
func damage(t testing.TB, name string, flip bool) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if !flip {
		if err := f.Truncate(info.Size() / 2); err != nil {
			t.Fatal(err)
		}
		return
	}
	var b [1]byte
	for at := int64(4000); at < info.Size(); at += 64 << 10 {
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 4
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
}
