package hub

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lighter/hub/rootdir"
)

// A hub's process in a directory gets the name of the previous process there. A process in a copy
// of the directory gets another name: both may run, and with one name each would end the other's
// work.
func TestOwnerOfACopiedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := DefaultConfig()
	c.Catalog = "postgres://database.example.org/lighter"
	nameIn := func(root string) string {
		t.Helper()
		lock, err := rootdir.Prepare(root)
		if err != nil {
			t.Fatal(err)
		}
		name, err := c.owner(lock)
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || len(name) < 16 {
			t.Fatalf("name %q, %v, want at least 16 characters", name, err)
		}
		return name
	}
	root, moved, copied := filepath.Join(dir, "root"), filepath.Join(dir, "moved"), filepath.Join(dir, "copied")
	first := nameIn(root)
	if again := nameIn(root); again != first {
		t.Errorf("after a restart the name is %s, want %s", again, first)
	}
	if err := os.Rename(root, moved); err != nil {
		t.Fatal(err)
	}
	if now := nameIn(moved); now != first {
		t.Errorf("after a move the name is %s, want %s", now, first)
	}
	if out, err := exec.Command("cp", "-a", moved, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if other := nameIn(copied); other == first {
		t.Error("a process in a copy of the directory has the same name")
	}
}
