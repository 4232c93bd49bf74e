package directory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/durable"
)

// The list has the images of previous daemons. A list that cannot be read is reported until its
// file is removed.
func TestListSurvivesARestart(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	l := openList(root, "list.json", &durable.Leftovers{})
	one, two := key{"a:1", target{"sha256:1", "sha256:9"}}, key{"b:1", target{chain: "sha256:2"}}
	for _, k := range []key{two, one, {"a:1", target{chain: "sha256:0"}}} {
		if err := l.add(k); err != nil {
			t.Fatal(err)
		}
	}
	l.remove(key{"a:1", target{chain: "sha256:0"}})
	// An image that is given up is added again before it is removed.
	if err := l.add(two); err != nil {
		t.Fatal(err)
	}
	l.remove(two)
	if err := l.set("/lighter"); err != nil {
		t.Fatal(err)
	}
	l = openList(root, "list.json", &durable.Leftovers{})
	if !slices.Equal(l.images, []key{one, two}) || l.dir != "/lighter" {
		t.Errorf("after a restart: got %v at %s, want %v and %v at /lighter", l.images, l.dir, one, two)
	}
	if err := os.WriteFile(filepath.Join(root, "list.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // later daemons report the damage, too
		var left durable.Leftovers
		damaged := openList(root, "list.json", &left)
		if all := left.List(); len(damaged.images) != 0 || !damaged.file.Incomplete() || len(all) != 1 ||
			all[0].Path != filepath.Join(root, "list.json.broken") {
			t.Errorf("a damaged list: got %v, incomplete %t, leftovers %v; want no images, true, and one leftover",
				damaged.images, damaged.file.Incomplete(), all)
		}
	}
	// An image that cannot be saved is not added.
	if err := os.Rename(root, root+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := l.add(key{"c:1", target{chain: "sha256:3"}}); err == nil || len(l.images) != 2 {
		t.Errorf("a list that cannot be saved: got %v, %v; want an error and the list as before", err, l.images)
	}
}
