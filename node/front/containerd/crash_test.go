package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"

	"lighter/test/testkit/immutable"
)

// populate makes one snapshot of each kind, and returns the names.
func populate(t *testing.T, sn *Snapshotter) (lazy string, all []string) {
	t.Helper()
	lazy = unpack(t, sn, "lazy", "", chainID("1"))
	plain := unpack(t, sn, "plain", lazy, chainID("9"))
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "active", plain))
	must[[]mount.Mount](t)(sn.View(t.Context(), "view", lazy))
	return lazy, []string{lazy, plain, "active", "view"}
}

// After a restart, all snapshots and their directories are as before, the chain of each lazy
// snapshot is held once, and mounts have the same lower directories.
func TestReopen(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one, chainID("2"))
	lazy, all := populate(t, sn)
	unused := unpack(t, sn, "2", lazy, chainID("2"))
	before := entries(t, sn)
	mounts := must[[]mount.Mount](t)(sn.Mounts(t.Context(), "active"))
	if err := errors.Join(sn.Close(), sn.Close()); err != nil {
		t.Fatal(err)
	}
	chains.sn = nil
	clear(chains.holds) // at the start of the next process, no chain is held
	allow := chains.forbid()
	sn = open(t, sn.dir, chains)
	if got := entries(t, sn); !slices.Equal(got, before) {
		t.Errorf("got entries %v, want %v as before", got, before)
	}
	if chains.holds[one] != 1 || chains.holds[chainID("2")] != 1 {
		t.Errorf("holds after the start: %v, want one per chain", chains.holds)
	}
	for _, name := range append(all, unused) {
		must[snapshots.Info](t)(sn.Stat(t.Context(), name))
	}
	if usage := must[snapshots.Usage](t)(sn.Usage(t.Context(), lazy)); usage.Size != 4711 {
		t.Errorf("usage %+v, want that of the chain", usage)
	}
	allow()
	got := must[[]mount.Mount](t)(sn.Mounts(t.Context(), "active"))
	if option(t, got, "lowerdir") != option(t, mounts, "lowerdir") {
		t.Errorf("mounts %v, want %v as before", got, mounts)
	}
	for _, name := range []string{"active", "view", "plain", unused, lazy} {
		if err := sn.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(chains.releases, one) || !slices.Contains(chains.releases, chainID("2")) {
		t.Errorf("released %v, want both chains", chains.releases)
	}
}

// In a new store, Cleanup and Walk succeed, and no chain is held.
func TestFreshStoreIsEmpty(t *testing.T) {
	sn, chains := newTest(t)
	if len(chains.holds) != 0 {
		t.Errorf("holds %v, want none", chains.holds)
	}
	if err := errors.Join(sn.Cleanup(t.Context()), sn.Walk(t.Context(), nil)); err != nil {
		t.Error(err)
	}
}

// A killed process leaves directories with temporary names, or with IDs that the store will give to
// other snapshots. The next process deletes these directories, and no others.
func TestRemainsOfAKilledProcess(t *testing.T) {
	sn, chains := newTest(t, chainID("1"))
	_, all := populate(t, sn)
	before := entries(t, sn)
	if err := sn.Close(); err != nil {
		t.Fatal(err)
	}
	chains.sn = nil
	foreign := []string{"lost+found", "notes.txt", "12a", "New-1"}
	for _, name := range append([]string{"new-123", "rm-456", "1000000"}, foreign...) {
		if err := os.MkdirAll(filepath.Join(sn.dir, name, "fs", "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sn = open(t, sn.dir, chains)
	want := slices.Sorted(slices.Values(append(slices.Clone(before), foreign...)))
	if got := entries(t, sn); !slices.Equal(got, want) {
		t.Errorf("entries %v, want %v", got, want)
	}
	for _, name := range all {
		must[snapshots.Info](t)(sn.Stat(t.Context(), name))
	}
	must[[]mount.Mount](t)(sn.Mounts(t.Context(), "active"))
}

// If the store gives an ID to another snapshot, an old directory of this ID is replaced by an empty
// directory.
func TestReusedID(t *testing.T) {
	sn, _ := newTest(t)
	// The first ID of a new store is 1.
	if err := os.MkdirAll(filepath.Join(sn.dir, "1", "fs", "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", ""))
	if mounts[0].Source != filepath.Join(sn.dir, "1", "fs") {
		t.Fatalf("mounts %v, want ID 1", mounts)
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(mounts[0].Source)); len(left) != 0 {
		t.Errorf("the new snapshot contains %v, want nothing", left)
	}
	if err := sn.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, sn); !slices.Equal(got, []string{"1", emptyDir, "metadata.db"}) {
		t.Errorf("entries %v, want only snapshot 1", got)
	}
}

// Leftovers that cannot be deleted prevent neither the start nor the cleanup of other leftovers.
// Leftovers lists them, and the first Cleanup that can delete them does so.
func TestLeftoversThatCannotBeDeleted(t *testing.T) {
	sn, chains := newTest(t, chainID("1"))
	_, all := populate(t, sn)
	if err := sn.Close(); err != nil {
		t.Fatal(err)
	}
	chains.sn = nil
	stubborn := filepath.Join(sn.dir, "rm-1", "5")
	immutable.Dir(t, stubborn)
	taken := filepath.Join(sn.dir, "1000000")
	immutable.Dir(t, taken)
	if err := os.MkdirAll(filepath.Join(sn.dir, "rm-2", "fs", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	sn = open(t, sn.dir, chains)
	for range 3 {
		if err := sn.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var paths []string
	for _, left := range sn.Leftovers() {
		if paths = append(paths, left.Path); left.Cause == "" {
			t.Errorf("leftover %+v has no cause, want one", left)
		}
	}
	if want := []string{taken, filepath.Join(sn.dir, "rm-1")}; !slices.Equal(paths, want) {
		t.Errorf("leftovers %q, want %q", paths, want)
	}
	if got, err := filepath.Glob(filepath.Join(sn.dir, "rm-*")); err != nil || len(got) != 1 {
		t.Errorf("directories that were moved aside: got %q, error %v; want one", got, err)
	}
	for _, name := range all {
		must[snapshots.Info](t)(sn.Stat(t.Context(), name))
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "another", ""))
	for _, path := range []string{stubborn, taken} {
		immutable.Set(t, path, false)
	}
	if err := sn.Cleanup(t.Context()); err != nil || len(sn.Leftovers()) > 0 {
		t.Errorf("after the leftovers can be deleted: got leftovers %v, error %v; want none", sn.Leftovers(), err)
	}
}

// If leftovers that cannot be moved occupy the directories of the next IDs, new snapshots get other
// IDs.
func TestSnapshotDirectoriesThatAreTaken(t *testing.T) {
	sn, _ := newTest(t)
	for _, id := range []string{"1", "2", "4"} {
		immutable.Dir(t, filepath.Join(sn.dir, id))
	}
	for _, want := range []string{"3", "5", "6"} {
		mounts := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key "+want, ""))
		if mounts[0].Source != filepath.Join(sn.dir, want, "fs") {
			t.Errorf("mounts %v, want directory %s", mounts, want)
		}
	}
	want := []string{"1", "2", "3", "4", "5", "6", emptyDir, "metadata.db"}
	if got := entries(t, sn); !slices.Equal(got, want) {
		t.Errorf("entries %q, want %q", got, want)
	}
	if left := sn.Leftovers(); len(left) != 3 {
		t.Errorf("leftovers %+v, want three", left)
	}
	for n := range triedIDs + 1 {
		immutable.Dir(t, filepath.Join(sn.dir, strconv.Itoa(7+n)))
	}
	if _, err := sn.Prepare(t.Context(), "none", ""); err == nil ||
		!strings.Contains(err.Error(), sn.dir) {
		t.Errorf("got error %v, want one that names the directory, after %d IDs", err, triedIDs)
	}
}

// Cleanup deletes the directory of a removed snapshot, and keeps those of others.
func TestCleanupAfterRemove(t *testing.T) {
	sn, _ := newTest(t)
	for _, key := range []string{"a", "b"} {
		mounts := must[[]mount.Mount](t)(sn.Prepare(t.Context(), key, ""))
		if err := os.WriteFile(filepath.Join(mounts[0].Source, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(sn.Remove(t.Context(), "a"), sn.Cleanup(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, sn); !slices.Equal(got, []string{"2", emptyDir, "metadata.db"}) {
		t.Errorf("entries %v, want only snapshot 2", got)
	}
	if usage := must[snapshots.Usage](t)(sn.Usage(t.Context(), "b")); usage.Inodes != 2 {
		t.Errorf("usage %+v, want 2 inodes", usage)
	}
}
