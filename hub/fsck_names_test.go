package hub_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/hub/registry"
	"lighter/wire"
)

// After a restore, the names in the catalog and in the registry differ if the two were copied at
// different times. A repair changes the catalog to match the registry: it removes names whose
// manifests are missing, and adds names that the catalog lacks.
func TestFsckComparesNames(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("stays:1", image(lowerTar))
	h.push("gone:1", image(lowerTar))
	moved := h.push("moved:old", image(upperTar))
	h.push("moved:1", image(lowerTar))
	parts := h.pushIndex("index:1", part{image: image(lowerTar)}, part{image: image(upperTar)})
	h.push("index:root", image(lowerTar, upperTar))
	for _, name := range []string{"stays:1", "gone:1", "moved:old", "moved:1", "index:1", "index:root"} {
		h.ready(name)
	}
	h.wantClean("at first", "stays:1", "gone:1")
	repository := func(name string) registry.Repository { return h.Registry().Repository(name) }
	m, err := repository("moved").Manifest(t.Context(), moved.String())
	if err == nil {
		err = errors.Join(repository("gone").Delete(t.Context(), "1"),
			repository("moved").PutManifest(t.Context(), "1", m),
			repository("moved").PutManifest(t.Context(), "new", m),
			repository("index").Delete(t.Context(), parts[0].String()))
	}
	if err != nil {
		t.Fatal(err)
	}
	check := h.fsck(wire.Fsck{})
	if check.Left() != 4 {
		t.Errorf("%d problems are found, want 4: %s", check.Left(), findings(check))
	}
	var images []string
	for _, f := range check.Findings {
		images = append(images, f.Images...)
	}
	if slices.Sort(images); !slices.Equal(images, []string{"gone:1", "index:1", "moved:1", "moved:new"}) {
		t.Errorf("the findings name %v, want gone:1, index:1, moved:1 and moved:new: %s", images, findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.wantClean("after the repair", "stays:1", "moved:1", "moved:new", "index:1", "index:root")
	if images := h.settled("gone:1"); len(images) != 0 {
		t.Errorf("the catalog still has %+v, want no image", images)
	}
	if images := h.settled("index:1"); len(images) != 1 || images[0].Digest != parts[1].String() {
		t.Errorf("the index stands for %+v, want %s", images, parts[1])
	}
	if got := h.settled("moved:1"); len(got) != 1 || got[0].Digest != moved.String() {
		t.Errorf("the moved name stands for %+v, want %s", got, moved)
	}
}

// If a copy of the registry has its manifests from before a tag was moved, and its tags from after
// that, the tag points to a missing manifest. A repair makes it point to the catalog's image again.
// Deleted tags stay deleted, also if their manifest is left.
func TestFsckRepairsDanglingTags(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	stays := h.push("a:1", image(lowerTar))
	h.push("a:deleted", image(lowerTar))
	moved := h.push("moved:1", image(upperTar)) // repository a does not have its manifest
	for _, name := range []string{"a:1", "a:deleted", "moved:1"} {
		h.ready(name)
	}
	repository := h.Registry().Repository("a")
	m, err := h.Registry().Repository("moved").Manifest(t.Context(), moved.String())
	if err == nil {
		err = errors.Join(repository.Tag(t.Context(), "1", m), repository.Delete(t.Context(), "deleted"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != 2 {
		t.Errorf("%d problems are found, want 2: %s", check.Left(), findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.wantClean("after the repair", "a:1", "moved:1")
	if images := h.settled("a:1"); len(images) != 1 || images[0].Digest != stays.String() {
		t.Errorf("a:1 stands for %+v, want %s", images, stays)
	}
	if m, err := repository.Manifest(t.Context(), "1"); err != nil || m.Digest != stays.String() {
		t.Errorf("the tag points to %s (%v), want %s", m.Digest, err, stays)
	}
	if images := h.settled("a:deleted"); len(images) != 0 {
		t.Errorf("the catalog still has %+v, want no image", images)
	}
}

// If the registry lacks most manifests of the catalog, a repair removes the names only if a user
// confirms it.
func TestFsckSparesNamesWithoutARegistry(t *testing.T) {
	t.Parallel()
	for _, images := range []int{1, 3, 10} {
		t.Run(fmt.Sprint(images), func(t *testing.T) {
			t.Parallel()
			testNamesAreSpared(t, images)
		})
	}
}

func testNamesAreSpared(t *testing.T, images int) {
	h := startHub(t)
	for i := range images {
		h.pushReady(fmt.Sprintf("a:%d", i), image(lowerTar))
	}
	h.wantClean("at first", "a:0")
	names := func(when string, want int) {
		t.Helper()
		if got, err := h.client.Images(t.Context(), ""); err != nil || len(got) != want {
			t.Errorf("%s: %d images (%v), want %d", when, len(got), err, want)
		}
	}
	tags := filepath.Join(registryDir(h.config), "docker", "registry", "v2", "repositories")
	if err := os.Rename(tags, tags+".away"); err != nil {
		t.Fatal(err)
	}
	const warning = "if this is the right registry"
	for _, w := range []wire.Fsck{{}, {Repair: true}} {
		if text := findings(h.fsck(w)); !strings.Contains(text, warning) || !strings.Contains(text, "--confirm") {
			t.Errorf("%+v: findings %s, want the names, with the warning and --confirm", w, text)
		}
	}
	names("without the registry", images)
	if err := os.Rename(tags+".away", tags); err != nil {
		t.Fatal(err)
	}
	h.wantClean("with the registry", "a:0")
	if images == 1 {
		return
	}
	for i := range images - 1 {
		if err := h.Registry().Repository("a").Delete(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != int64(images-1) {
		t.Errorf("without a confirmation: %s, want %d problems", findings(check), images-1)
	}
	names("without a confirmation", images)
	if check := h.fsck(wire.Fsck{Repair: true, Confirm: true}); check.Left() != 0 {
		t.Errorf("with a confirmation: %s", findings(check))
	}
	names("with a confirmation", 1)
	h.wantClean("in the end", fmt.Sprintf("a:%d", images-1))
}

// A check reports no difference of a name that is being changed.
func TestFsckSparesChangingNames(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	h.pushReady("stays:1", image(lowerTar))
	h.idle()
	settled, err := h.Names().Changing(t.Context(), "a", "1")
	if err == nil {
		err = h.Registry().Repository("a").Delete(t.Context(), "1")
	}
	if err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); len(check.Findings) != 0 {
		t.Errorf("during the change: %s, want no findings", findings(check))
	}
	settled()
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || len(check.Findings) != 1 {
		t.Errorf("after the change: %s, want one repaired finding", findings(check))
	}
}
