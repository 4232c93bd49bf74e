package tree

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/tarball"
)

func scan(stream []byte, limits Limits) ([]*Entry, error) {
	var list []*Entry
	err := Scan(bytes.NewReader(stream), limits, wholeFile, func(e *Entry) error {
		list = append(list, e)
		return nil
	})
	return list, err
}

func TestScanEntry(t *testing.T) {
	list, err := scan(tarball.Of(
		tarball.File("./a/", "hello", tarball.Mode(0o104755), tarball.Owner(-1, 1<<33), tarball.Time(1<<40, 5),
			tarball.Xattr("user.b", "2"), tarball.Xattr("trusted.a", ""), tarball.PAX("comment", "x")),
		tarball.Link("b", "../a", tarball.Claim(5)),
		tarball.Block("c", -1, 1<<40),
	), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := list[0], list[1], list[2]
	if a.Name != "./a/" || a.Mode != 0o4755 || a.UID != -1 || a.GID != 1<<33 || a.Mtime != (Time{}) {
		t.Errorf("got %+v, want the header's name, mode and IDs, and the time 1970", a)
	}
	if len(a.Xattrs) != 2 || a.Xattrs[0].Name != "trusted.a" || string(a.Xattrs[1].Value) != "2" {
		t.Errorf("got %q, want the header's two attributes, sorted", a.Xattrs)
	}
	if string(a.Content.Inline) != "hello" || a.Size != 5 {
		t.Errorf("got %q of %d bytes, want \"hello\" of 5", a.Content.Inline, a.Size)
	}
	if b.Linkname != "../a" || b.Size != 0 || c.Major != -1 || c.Minor != 1<<40 {
		t.Errorf("got %+v, %+v; want the header's link target and device number", b, c)
	}
}

// content is called for regular files that are not empty and become part of the layer.
func TestScanCallsContent(t *testing.T) {
	stream := tarball.Of(
		tarball.File("a", "content"), tarball.File("empty", ""), tarball.File(".wh.b", "content"),
		tarball.File("c/.wh..wh..opq", "content"), tarball.File(".", "content"), tarball.File("../..", "content"),
		tarball.File("c/../d/", "content"), tarball.Dir("e"), tarball.Other('7', "f"),
		tarball.File("e/.wh/g", "content"),
	)
	var asked []string
	err := Scan(bytes.NewReader(stream), Limits{}, func(e *Entry, r io.Reader) error {
		asked = append(asked, e.Name)
		return wholeFile(e, r)
	}, func(e *Entry) error {
		if have := int64(len(e.Content.Inline)); have != e.Size {
			t.Errorf("%q: got %d bytes, want %d", e.Name, have, e.Size)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(asked, " "); got != "a c/../d/ e/.wh/g" {
		t.Errorf("content was called for %q, want the files a, c/../d/ and e/.wh/g", got)
	}
}

func TestScanLimits(t *testing.T) {
	sparse := tarball.File("a", "", tarball.PAX("GNU.sparse.size", "100000"),
		tarball.PAX("GNU.sparse.major", "0"), tarball.PAX("GNU.sparse.minor", "1"),
		tarball.PAX("GNU.sparse.numblocks", "0"), tarball.PAX("GNU.sparse.map", ""))
	three := tarball.Of(tarball.File("a", "x"), tarball.Dir("b"), tarball.Dir("c"))
	for name, c := range map[string]struct {
		stream []byte
		limits Limits
		ok     bool
	}{
		"entries":         {three, Limits{Entries: 2}, false},
		"as many entries": {three, Limits{Entries: 3}, true},
		"bytes":           {three, Limits{Bytes: int64(len(three)) - 1}, false},
		"as many bytes":   {three, Limits{Bytes: int64(len(three))}, true},
		"bytes behind the end": {append(bytes.Clone(three), make([]byte, 4096)...),
			Limits{Bytes: int64(len(three))}, false},
		"a sparse file":   {tarball.Of(sparse), Limits{Bytes: 99999}, false},
		"as large a file": {tarball.Of(sparse), Limits{Bytes: 100000}, true},
	} {
		_, err := scan(c.stream, c.limits)
		var beyond *LimitError
		if (err == nil) != c.ok || err != nil && !errors.As(err, &beyond) {
			t.Errorf("%s: got %v, want success: %t, otherwise a LimitError", name, err, c.ok)
		}
	}
}

func TestScanRefusesHugeFiles(t *testing.T) {
	huge := tarball.File("a", "", tarball.PAX("GNU.sparse.size", "9223372036854775807"),
		tarball.PAX("GNU.sparse.major", "0"), tarball.PAX("GNU.sparse.minor", "1"),
		tarball.PAX("GNU.sparse.numblocks", "0"), tarball.PAX("GNU.sparse.map", ""))
	asked := false
	err := Scan(bytes.NewReader(tarball.Of(huge)), Limits{}, func(*Entry, io.Reader) error { asked = true; return nil },
		func(*Entry) error { return nil })
	if err == nil || asked {
		t.Errorf("got %v, content called: %v; want an error, false", err, asked)
	}
}

func TestScanTruncated(t *testing.T) {
	stream := tarball.Of(tarball.File("a", strings.Repeat("x", 2000)))
	for n := 1; n < 512+2000; n++ {
		if _, err := scan(stream[:n], Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: got %v, want ErrUnexpectedEOF", n, err)
		}
	}
}

func TestScanReturnsErrors(t *testing.T) {
	stream := bytes.NewReader(tarball.Of(tarball.File("a", "x")))
	fail := func(*Entry) error { return errTest }
	if err := Scan(stream, Limits{}, wholeFile, fail); !errors.Is(err, errTest) {
		t.Errorf("got %v, want emit's error", err)
	}
	stream.Seek(0, io.SeekStart)
	if err := Scan(stream, Limits{}, func(e *Entry, _ io.Reader) error { return fail(e) }, nil); !errors.Is(err,
		errTest) {
		t.Errorf("got %v, want content's error", err)
	}
	stream.Seek(0, io.SeekStart)
	if err := Scan(stream, Limits{}, func(*Entry, io.Reader) error { return nil }, nil); err == nil {
		t.Error("content that was not set: got no error")
	}
}

// A hash of the stream must cover all of it.
func TestScanReadsToTheEnd(t *testing.T) {
	stream := bytes.NewReader(append(tarball.Of(tarball.Dir("a")), "anything"...))
	if err := Scan(stream, Limits{}, wholeFile, func(*Entry) error { return nil }); err != nil || stream.Len() != 0 {
		t.Errorf("%d bytes were not read (%v)", stream.Len(), err)
	}
}

// sliceSource is a LayerSource of entries in memory.
type sliceSource []*Entry

func (s *sliceSource) Next() (*Entry, error) {
	if len(*s) == 0 {
		return nil, io.EOF
	}
	e := (*s)[0]
	*s = (*s)[1:]
	return e, nil
}

// A layer whose contents are not known yet has extents of small files, too. Scan gives them inline.
func TestSmallFilesMayHaveExtents(t *testing.T) {
	only := Extent{ID: chunk.Sum([]byte("abc")), Length: 3}
	e := &Entry{Type: '0', Name: "a", Size: 3, Content: Content{Extents: []Extent{only}}}
	tr, err := Apply(t.Context(), []LayerSource{&sliceSource{e}}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if n := tr.Root.Children()[0].Node; n.Size != 3 || len(n.Content.Extents) != 1 {
		t.Errorf("got %d bytes in %d extents, want 3 in one", n.Size, len(n.Content.Extents))
	}
	for name, c := range map[string]Content{
		"both":            {Inline: []byte{}, Extents: e.Content.Extents},
		"too few bytes":   {Extents: []Extent{{ID: only.ID, Length: 2}}},
		"too many bytes":  {Extents: []Extent{{ID: only.ID, Length: 4}}},
		"an empty extent": {Extents: []Extent{{}, only}},
	} {
		e := &Entry{Type: '0', Name: "a", Size: 3, Content: c}
		if _, err := Apply(t.Context(), []LayerSource{&sliceSource{e}}, Limits{}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	content := func(scanned *Entry, r io.Reader) error {
		scanned.Content = e.Content
		return nil
	}
	layer := bytes.NewReader(tarball.Of(tarball.File("a", "abc")))
	err = Scan(layer, Limits{}, content, func(*Entry) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "file of 3 bytes in 1 extents, want it inline") {
		t.Errorf("Scan returned %v, want an error", err)
	}
}

// Names need not be clean.
func TestLeavesFile(t *testing.T) {
	for _, name := range []string{"a", "a/", "./a//", "a/b/..", "a/b/.", "../a", ".wh.x/..a", ".../"} {
		if !LeavesFile(name) {
			t.Errorf("%q leaves no file", name)
		}
	}
	for _, name := range []string{"", ".", "/", "..", "a/..", "/..", "a/.wh.b", ".wh.a/", ".wh.a/.",
		"a/.wh.b/c/..", ".wh..wh..opq"} {
		if LeavesFile(name) {
			t.Errorf("%q leaves a file", name)
		}
	}
}
