package objects_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	_ "gocloud.dev/blob/memblob" // mem://

	"lighter/format/pack"
	"lighter/hub/objects"
	"lighter/test/testkit/objectstest"
)

// The contract holds for a directory and for a bucket in memory, which stands for all other
// buckets.
func TestConformance(t *testing.T) {
	for name, url := range map[string]func(dir string) string{
		"directory": func(dir string) string { return "file://" + dir },
		"bucket":    func(string) string { return "mem://" },
	} {
		t.Run(name, func(t *testing.T) {
			objectstest.Run(t, func(t *testing.T) *objects.Store {
				s, err := objects.Open(t.Context(), url(filepath.Join(t.TempDir(), "new")))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, (*testing.T).TempDir)
		})
	}
}

func TestOpenFails(t *testing.T) {
	for _, url := range []string{"nonsense://x", "://", "file:///dev/null/x"} {
		if _, err := objects.Open(t.Context(), url); err == nil {
			t.Errorf("open %s: got no error, want one", url)
		}
	}
}

// Stores that share the cache of tables do not share packs.
func TestSharedTables(t *testing.T) {
	open := func() *objects.Store {
		s, err := objects.Open(t.Context(), "mem://")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	one, other := open(), open()
	other.Tables = one.Tables
	file, err := os.Create(filepath.Join(t.TempDir(), "pack"))
	if err != nil {
		t.Fatal(err)
	}
	w := pack.NewWriter(file)
	if _, err := w.Add([]byte("a unit")); err != nil {
		t.Fatal(err)
	}
	id, _, err := w.Close()
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	staged := []objects.Staged{{Key: objects.PackKey(id), Path: file.Name()}}
	if err := one.Publish(t.Context(), staged); err != nil {
		t.Fatal(err)
	}
	if n, err := one.CountUnits(t.Context(), id); n != 1 || err != nil {
		t.Errorf("the store has %d units of its pack (%v), want 1", n, err)
	}
	if n, err := other.CountUnits(t.Context(), id); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("the other store has %d units of the pack (error %v), want ErrNotFound", n, err)
	}
}
