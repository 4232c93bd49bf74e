//go:build e2e

package node

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// locationsOfHub returns a tree's current locations from the hub, decompressed.
func locationsOfHub(t *testing.T, tree chunk.ID) []byte {
	t.Helper()
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	b, err := decoder.DecodeAll(ofHub(t, "/lighter/1/default/locations/"+tree.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// startupsOf returns the startup packs in a tree's locations on the node's disk. dir is the tree's
// directory.
func startupsOf(t *testing.T, dir string, tree chunk.ID) []index.Startup {
	t.Helper()
	extents, err := os.Open(filepath.Join(dir, "map"))
	if err != nil {
		t.Fatal(err)
	}
	defer extents.Close()
	m, err := index.OpenMap(extents, tree, index.NewPages(1))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "locations"))
	if err != nil {
		t.Fatal(err)
	}
	locations, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), tree, m.Extents)
	if err != nil {
		t.Fatal(err)
	}
	return locations.Startups()
}

// After a start was recorded, the hub has new locations with startup packs. As soon as the node's
// locations are a minute old, the next start on this node fetches the new ones, also if the node
// was restarted with the old ones. With an empty cache, the start also prefetches the startup
// packs.
func TestNodeLearnsOfNewerLocations(t *testing.T) {
	s := startSite(t, "python")
	pull(t, s, "python")
	python := func() {
		t.Helper()
		ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
			"print('hello')")
		if err != nil || ran.Output != "hello\n" {
			t.Errorf("python3 printed %q (%v), want %q", ran.Output, err, "hello\n")
		}
	}
	python()
	tree := nodeStatus(t, s).Mounts[0].Tree
	path := filepath.Join(s.Machine.NodeRoot(), "trees", tree.String(), "locations")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "new locations on the hub", func() bool { return !bytes.Equal(old, locationsOfHub(t, tree)) })
	python()
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, old) {
		t.Errorf("locations that are younger than a minute were replaced (%v), want them kept", err)
	}

	// later runs python with an empty cache and with locations that are two minutes old.
	later := func() {
		t.Helper()
		ago := time.Now().Add(-2 * time.Minute)
		if err := os.Chtimes(path, ago, ago); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Machine.Command(t.Context(), lighter, "cache", "prune", "--root",
			s.Machine.NodeRoot()); err != nil {
			t.Fatal(err)
		}
		python()
		eventually.Holds(t, "the new locations on the node", func() bool {
			now, err := os.ReadFile(path)
			return err == nil && bytes.Equal(now, locationsOfHub(t, tree))
		})
	}
	later()
	var startup int64
	for _, pack := range startupsOf(t, filepath.Dir(path), tree) {
		if pack.AtMount {
			startup += pack.Bytes()
		}
	}
	eventually.Holds(t, "the startup packs", func() bool {
		return startup > 0 &&
			nodeStatus(t, s).Ahead.Startup.Fetched >= startup*9/10
	})

	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, old, 0o400); err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	later()
}
