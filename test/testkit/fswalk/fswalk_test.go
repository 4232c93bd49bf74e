package fswalk

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sample makes a directory with one entry of each type that needs no privileges.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Mkdir(at("d"), 0o755),
		os.WriteFile(at("d/f"), []byte("hello"), 0o640),
		os.Link(at("d/f"), at("d/g")),
		os.Link(at("d/f"), at("a")),
		os.Symlink("d/f", at("l")),
		unix.Mkfifo(at("p"), 0o600),
		unix.Setxattr(at("d"), "user.x", []byte("1"), 0),
		os.Chtimes(at("d/f"), time.Time{}, time.Unix(5, 7)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWalk(t *testing.T) {
	got, err := Walk(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 7 || !got["."].IsDir() {
		t.Fatalf("got %v", got)
	}
	f := got["d/f"]
	const sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	if f.SHA256 != sum || f.Size != 5 || f.Nlink != 3 || f.Sec != 5 || f.Nsec != 7 || f.Mode != unix.S_IFREG|0o640 {
		t.Errorf("got %+v", f)
	}
	if f.Group != "a" || got["d/g"].Group != "a" || got["a"].Group != "a" || got["p"].Group != "" {
		t.Errorf("groups %q, %q, %q", f.Group, got["d/g"].Group, got["a"].Group)
	}
	if l := got["l"]; l.Link != "d/f" || l.Size != 3 || l.SHA256 != "" {
		t.Errorf("got %+v", l)
	}
	if x := got["d"].Xattrs; len(x) != 1 || x["user.x"] != "1" {
		t.Errorf("got %q", x)
	}
}

// TestDiffReportsEveryAttribute changes one attribute at a time.
func TestDiffReportsEveryAttribute(t *testing.T) {
	a, err := Walk(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	if lines := Diff(a, maps.Clone(a), Options{}); len(lines) != 0 {
		t.Fatalf("equal listings: %q, want no difference", lines)
	}
	for word, change := range map[string]func(e *Entry){
		"mode":                             func(e *Entry) { e.Mode ^= 1 },
		"owner":                            func(e *Entry) { e.GID++ },
		"device":                           func(e *Entry) { e.Rdev++ },
		"size":                             func(e *Entry) { e.Size++ },
		"link to":                          func(e *Entry) { e.Link = "x" },
		"SHA-256":                          func(e *Entry) { e.SHA256 = "" },
		"same inode":                       func(e *Entry) { e.Group = "x" },
		"link count":                       func(e *Entry) { e.Nlink++ },
		"time":                             func(e *Entry) { e.Nsec++ },
		"attribute \"user.y\" absent and ": func(e *Entry) { e.Xattrs = map[string]string{"user.y": ""} },
	} {
		b := maps.Clone(a)
		e := b["d/f"]
		change(&e)
		b["d/f"] = e
		if lines := Diff(a, b, Options{}); len(lines) != 1 || !strings.HasPrefix(lines[0], `"d/f": `+word) {
			t.Errorf("%s: %q", word, lines)
		}
	}
	b := maps.Clone(a)
	delete(b, "p")
	b["q"] = Entry{}
	if lines := Diff(a, b, Options{}); len(lines) != 2 || !strings.Contains(lines[0], `"p": only in the first`) ||
		!strings.Contains(lines[1], `"q": only in the second`) {
		t.Errorf("got %q", lines)
	}
}

func TestDiffOptions(t *testing.T) {
	a := Listing{"f": {Sec: 1, Nlink: 2}}
	b := Listing{"f": {Sec: 2, Nlink: 1}}
	o := Options{IgnoreNlink: true, ComparesTime: func(string, Entry, Entry) bool { return false }}
	if lines := Diff(a, b, o); len(lines) != 0 {
		t.Errorf("got %q", lines)
	}
}
