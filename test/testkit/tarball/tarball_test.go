package tarball

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
)

// TestArchiveTarReadsIt checks that archive/tar reads from a stream what a test has put into its
// entries. archive/tar could not write all of these entries.
func TestArchiveTarReadsIt(t *testing.T) {
	long := strings.Repeat("long/", 40) + "name"
	r := tar.NewReader(bytes.NewReader(Of(
		File("a", "hello", Mode(0o4755), Owner(1<<40, -5), Time(-3, 0), Xattr("user.x", "=\n")),
		Dir("d", Time(7, 9)),
		Symlink(long, long, Long),
		Link(long, long),
		Char("c", -1, 1<<40),
		Whiteout("d/e"),
	)))
	next := func() *tar.Header {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := next()
	if h.Name != "a" || h.Mode != 0o4755 || h.Uid != 1<<40 || h.Gid != -5 || h.ModTime.Unix() != -3 ||
		h.PAXRecords["SCHILY.xattr.user.x"] != "=\n" {
		t.Errorf("file a: got %+v, want mode 4755, owner 1<<40:-5, time -3 and the attribute user.x", h)
	}
	if content, err := io.ReadAll(r); err != nil || string(content) != "hello" {
		t.Errorf("content of file a: got %q (%v), want %q", content, err, "hello")
	}
	if h = next(); h.Typeflag != tar.TypeDir || h.Name != "d/" || h.ModTime.UnixNano() != 7e9+9 {
		t.Errorf("directory d: got %+v, want the name d/ and the time 7.000000009", h)
	}
	for range 2 {
		if h = next(); h.Name != long || h.Linkname != long {
			t.Errorf("link with long names: got %+v, want %q twice", h, long)
		}
	}
	if h = next(); h.Devmajor != -1 || h.Devminor != 1<<40 {
		t.Errorf("device c: got %+v, want the number -1, 1<<40", h)
	}
	if h = next(); h.Name != "d/.wh.e" {
		t.Errorf("whiteout: got %+v, want the name d/.wh.e", h)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("read after the last entry: got %v, want %v", err, io.EOF)
	}
}

func TestOddChainsHaveUniqueNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Odd() {
		if seen[c.Name] || len(c.Layers) == 0 {
			t.Errorf("chain %q has no layers, or its name is not unique", c.Name)
		}
		seen[c.Name] = true
	}
	t.Logf("%d odd chains", len(seen))
}
