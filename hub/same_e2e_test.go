//go:build e2e

package hub_test

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/wire"
)

// wantSame fails the test unless two hubs have the same, and the stores of got are consistent.
// Nothing has disturbed the hub want.
func wantSame(t *testing.T, got, want *testHub) {
	t.Helper()
	wantSameCatalog(t, got, want)
	wantConsistent(t, got)
}

// wantSameCatalog fails the test unless two hubs have the same numbers of rows in their catalogs,
// and the same images with the same trees, and the catalog of got knows all objects of its bucket.
// It waits for a while, because a process may still be cleaning up.
func wantSameCatalog(t *testing.T, got, want *testHub) {
	t.Helper()
	var err error
	for range 100 {
		if err = compare(t, got.config, want.config); err == nil {
			break
		}
		time.Sleep(processLease / 10)
	}
	if err != nil {
		t.Error(err)
	}
	if has, wanted := got.trees(), want.trees(); !maps.Equal(has, wanted) {
		t.Errorf("the images have trees %v, want %v", has, wanted)
	}
}

// wantConsistent fails the test unless the catalog and the stores of a hub agree, in both
// directions and byte by byte.
func wantConsistent(t *testing.T, h *testHub) {
	t.Helper()
	if check := h.fsck(wire.Fsck{Deep: true}); check.Left() != 0 {
		t.Errorf("the stores differ: %s", findings(check))
	}
}

// compare returns an error unless the rows and the bucket are as wantSameCatalog wants them.
func compare(t *testing.T, got, want hub.Config) error {
	t.Helper()
	has, size := inventoryOf(t, got)
	wanted, wantSize := inventoryOf(t, want)
	// A layer that is split while it is pushed has a pack of its own. A disturbed push may leave it
	// to the image's job.
	has.Packs, wanted.Packs = 0, 0
	if has != wanted || size > wantSize*11/10 {
		return fmt.Errorf("the hub has %+v in %d bytes of packs, want %+v in %d", has, size, wanted, wantSize)
	}
	c, err := catalog.Open(t.Context(), catalog.Place{Source: catalogOf(got)})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, key := range files(t, objectsDir(got)) {
		if known, err := knows(t.Context(), c, key); err != nil || !known {
			return fmt.Errorf("the bucket has %s, which the catalog does not know (%v)", key, err)
		}
	}
	return nil
}

// inventoryOf returns what a catalog has, and the bytes of its packs.
func inventoryOf(t *testing.T, c hub.Config) (catalog.Inventory, int64) {
	t.Helper()
	opened, err := catalog.Open(t.Context(), catalog.Place{Source: catalogOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	inventory, err := opened.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size, err := opened.Starts.PackBytes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inventory, size
}

// wantUndisturbed does the same rounds in a new hub with configuration c, undisturbed. It fails the
// test unless h has the same in the end, and the stores of h are consistent.
func wantUndisturbed(t *testing.T, s scene, rounds int, c hub.Config, h *process) {
	t.Helper()
	undisturbed := startProcess(t, c)
	for round := range rounds + 1 {
		s.prepare(undisturbed, round)
		undisturbed.idle()
		work(t, s, round, undisturbed)
	}
	h.idle()
	wantSameCatalog(t, h.testHub, undisturbed.testHub)
	// A blob whose deletion was interrupted is locked for less than a minute.
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(time.Second) {
		got, want := h.stored(), undisturbed.stored()
		if slices.Equal(got, want) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the registry has %v, want %v", got, want)
			break
		}
		work(t, s, rounds, h)
	}
	wantConsistent(t, h.testHub)
	t.Logf("%d rounds", rounds)
}

// stored returns the files of the registry, except those of uploads.
func (h *testHub) stored() []string {
	return slices.DeleteFunc(h.registryFiles(""), func(file string) bool { return strings.Contains(file, "_uploads") })
}

// trees returns STATE TREE of all images, by NAME@DIGEST.
func (h *testHub) trees() map[string]string {
	h.t.Helper()
	images, err := h.client.Images(h.t.Context(), "")
	if err != nil {
		h.t.Fatal(err)
	}
	trees := map[string]string{}
	for _, i := range images {
		trees[i.Name+"@"+i.Digest] = i.State + " " + i.Tree
	}
	return trees
}

// catalogOf returns the URL or the file of the catalog of a hub.
func catalogOf(c hub.Config) string { return cmp.Or(c.Catalog, filepath.Join(c.Root, "catalog.db")) }
