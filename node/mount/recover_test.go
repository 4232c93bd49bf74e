package mount

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/format/chunk"
)

// Prepare and Recover remove unfinished trees and unused mount points of a previous daemon, and
// keep everything else. Abandon removes the root.
func TestPrepareAndRecover(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root [1]")
	tree := chunk.Sum(nil).String()
	for _, dir := range []string{"trees/new-" + tree, "trees/rm-" + tree, "trees/" + tree, "mounts/" + tree,
		"mounts/foreign/below"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Prepare(root); err != nil {
			t.Fatal(err)
		}
		mounts := openMounts(root, nil)
		if err := mounts.Recover(false); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	for _, dir := range []string{"trees", "mounts", "devices"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			left = append(left, dir+"/"+entry.Name())
		}
	}
	if want := []string{"trees/" + tree, "mounts/foreign"}; !slices.Equal(left, want) {
		t.Errorf("entries after Recover: got %q, want %q", left, want)
	}
	if err := Abandon(root); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the root after Abandon: got %v, want that it does not exist", err)
	}
	if err := Abandon(root); err != nil {
		t.Error(err)
	}
}
