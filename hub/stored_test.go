package hub_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/rootdir"
)

// newStores sets the catalog and the bucket of a new hub. By default it leaves them empty: SQLite
// and a directory. bucketDir returns the directory with the files of a bucket that newStores has
// set.
var (
	newStores = func(*testing.T, *hub.Config) {}
	bucketDir = func(string) string { return "" }
)

// objectsDir returns the directory of a hub's objects.
func objectsDir(c hub.Config) string {
	if c.Bucket != "" {
		return bucketDir(c.Bucket)
	}
	return rootdir.Objects(c.Root)
}

// registryDir returns the directory of a hub's registry.
func registryDir(c hub.Config) string {
	if c.Bucket != "" {
		return filepath.Join(bucketDir(c.Bucket), "registry")
	}
	return rootdir.Registry(c.Root)
}

// holdings is everything that the hub stores for images, except their names.
type holdings struct {
	objects   []string
	inventory catalog.Inventory
}

func (h *testHub) holdings() holdings {
	h.t.Helper()
	inventory, err := h.Catalog().Inventory(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	inventory.Images = 0
	return holdings{objects: files(h.t, objectsDir(h.config)), inventory: inventory}
}

// files lists the files below dir.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		// A bucket has these directories, and its lock, beside its objects.
		if d.IsDir() && (name == "registry" || name == "domains" || name == ".sgwtmp") {
			return filepath.SkipDir
		}
		if !d.IsDir() && name != "bucket.lock" {
			list = append(list, name)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return list
}

// blobFile returns the registry's file of a blob.
func (h *testHub) blobFile(d digest.Digest) string {
	return filepath.Join(registryDir(h.config), "docker/registry/v2/blobs/sha256", d.Encoded()[:2],
		d.Encoded(), "data")
}

// registryFiles returns the files of the registry whose paths contain a text.
func (h *testHub) registryFiles(text string) (found []string) {
	for _, file := range files(h.t, registryDir(h.config)) {
		if strings.Contains(file, text) {
			found = append(found, file)
		}
	}
	return found
}

// loseObjects removes all objects of a hub.
func (h *testHub) loseObjects() {
	h.t.Helper()
	dir := objectsDir(h.config)
	for _, key := range files(h.t, dir) {
		if err := os.Remove(filepath.Join(dir, key)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// storeUnknown stores an object that the catalog does not know, with a modification time in the
// past.
func (h *testHub) storeUnknown(key string, ago time.Duration) {
	h.t.Helper()
	file := filepath.Join(objectsDir(h.config), key)
	write(h.t, file, []byte("unknown"))
	at := time.Now().Add(-ago)
	if err := os.Chtimes(file, at, at); err != nil {
		h.t.Fatal(err)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// damage flips a bit in the middle of a file.
func damage(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x40
	write(t, file, b)
}

// objectBytes returns the bytes of all objects.
func (h *testHub) objectBytes() (bytes int64) {
	h.t.Helper()
	for _, key := range files(h.t, objectsDir(h.config)) {
		info, err := os.Stat(filepath.Join(objectsDir(h.config), key))
		if err != nil {
			h.t.Fatal(err)
		}
		bytes += info.Size()
	}
	return bytes
}

// knows reports whether a catalog has an object.
func knows(ctx context.Context, c *catalog.Catalog, key string) (known bool, err error) {
	kind, name, _ := strings.Cut(key, "/")
	id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
	if err != nil {
		return false, err
	}
	switch kind {
	case "packs":
		known, err = c.HasPack(ctx, id)
	case "indexes":
		known, err = c.HasTree(ctx, id)
	case "locations":
		known, err = c.Starts.HasLocations(ctx, id)
	case "layers":
		known, _, err = c.HasLayer(ctx, "sha256:"+id.String(), "")
	}
	return known, err
}

// consistent checks that the bucket has the objects that the catalog names, and no others.
func (h *testHub) consistent() {
	h.t.Helper()
	ctx, c := h.t.Context(), h.Catalog()
	inventory, err := c.Inventory(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	// A rewritten pack may have been made again. It counts once.
	packs, err := c.Checks.Objects(ctx, catalog.Packs, chunk.ID{}, 1<<20)
	if err != nil {
		h.t.Fatal(err)
	}
	want := map[string]int64{
		"packs":   int64(len(packs)),
		"indexes": inventory.Trees, "locations": inventory.Trees, "layers": inventory.Layers,
	}
	got := map[string]int64{"packs": 0, "indexes": 0, "locations": 0, "layers": 0}
	for _, key := range files(h.t, objectsDir(h.config)) {
		kind, _, _ := strings.Cut(key, "/")
		got[kind]++
		if known, err := knows(ctx, c, key); err != nil || !known {
			h.t.Errorf("the bucket has %s, which the catalog does not know (%v)", key, err)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.t.Errorf("the bucket has the numbers of objects %v, want those of the catalog, %v", got, want)
	}
}
