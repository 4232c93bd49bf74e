package binds

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/durable"
)

// The list has the binds of previous daemons. A list that cannot be read is reported until its file
// is removed.
func TestListSurvivesARestart(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	l := openList(root, &durable.Leftovers{})
	one, two := Bind{Dir: "/one", Name: "a:1", Chain: "sha256:a"}, Bind{Dir: "/two", Name: "a:1", Chain: "sha256:a"}
	if err := errors.Join(l.add(one), l.add(two), l.remove("/one")); err != nil {
		t.Fatal(err)
	}
	if err := l.add(two); err == nil || !strings.Contains(err.Error(), "lighter unmount /two") {
		t.Errorf("add the same directory twice: got %v, want an error with the command", err)
	}
	if all := openList(root, &durable.Leftovers{}).all(); len(all) != 1 || all[0] != two {
		t.Errorf("after a restart: got %+v, want %+v", all, two)
	}
	file := filepath.Join(root, "binds.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // later daemons report the damage, too
		var left durable.Leftovers
		damaged := openList(root, &left)
		if all := left.List(); len(damaged.all()) != 0 || !damaged.file.Incomplete() || len(all) != 1 ||
			all[0].Path != file+".broken" {
			t.Errorf("a damaged list: got %+v, incomplete %t, leftovers %+v; want no binds, true, and one leftover",
				damaged.all(), damaged.file.Incomplete(), all)
		}
	}
	// A bind that cannot be saved is not made.
	if err := os.Rename(root, root+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := l.add(one); err == nil || len(l.all()) != 1 {
		t.Errorf("a list that cannot be saved: got %v, %+v; want an error and the list as before", err, l.all())
	}
}

// RealDir resolves symbolic links. It refuses a path that is relative, missing or not a directory.
func TestRealDir(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Symlink(dir, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, dir + "/", link, link + "/link/."} {
		if got, err := RealDir(name); err != nil || got != dir {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, dir)
		}
	}
	for name, want := range map[string]string{"relative": "absolute", file: "not a directory",
		dir + "/missing": "missing"} {
		if _, err := RealDir(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, want)
		}
	}
}
