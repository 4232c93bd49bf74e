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
		t.Fatalf("got %v, want the root, which is a directory, and 6 entries", got)
	}
	f := got["d/f"]
	const sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	if f.SHA256 != sum || f.Size != 5 || f.Nlink != 3 || f.Sec != 5 || f.Nsec != 7 || f.Mode != unix.S_IFREG|0o640 {
		t.Errorf("file d/f: got %+v, want mode %#o, 5 bytes, 3 links, time 5.000000007 and SHA-256 %s",
			f, unix.S_IFREG|0o640, sum)
	}
	if f.Group != "a" || got["d/g"].Group != "a" || got["a"].Group != "a" || got["p"].Group != "" {
		t.Errorf("groups of d/f, d/g, a and p: got %q, %q, %q, %q; want %q three times, and none",
			f.Group, got["d/g"].Group, got["a"].Group, got["p"].Group, "a")
	}
	if l := got["l"]; l.Link != "d/f" || l.Size != 3 || l.SHA256 != "" {
		t.Errorf("symlink l: got %+v, want the target d/f, size 3 and no SHA-256", l)
	}
	if x := got["d"].Xattrs; len(x) != 1 || x["user.x"] != "1" {
		t.Errorf("attributes of d: got %q, want only user.x with the value 1", x)
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
			t.Errorf("differences after %s of d/f has changed: got %q, want one, which names it", word, lines)
		}
	}
	b := maps.Clone(a)
	delete(b, "p")
	b["q"] = Entry{}
	if lines := Diff(a, b, Options{}); len(lines) != 2 || !strings.Contains(lines[0], `"p": only in the first`) ||
		!strings.Contains(lines[1], `"q": only in the second`) {
		t.Errorf("got differences %q, want: p only in the first, q only in the second", lines)
	}
}

func TestDiffOptions(t *testing.T) {
	a := Listing{"f": {Sec: 1, Nlink: 2}}
	b := Listing{"f": {Sec: 2, Nlink: 1}}
	o := Options{IgnoreNlink: true, ComparesTime: func(string, Entry, Entry) bool { return false }}
	if lines := Diff(a, b, o); len(lines) != 0 {
		t.Errorf("got differences %q of ignored link counts and times, want none", lines)
	}
}
