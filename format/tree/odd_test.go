package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/golden"
	"lighter/test/testkit/tarball"
)

// TestOddChains compares the trees of the odd chains with testdata/odd.txt. The oracle test in
// test/e2e compares the same trees with containerd's, but needs root.
func TestOddChains(t *testing.T) {
	var got strings.Builder
	for _, c := range tarball.Odd() {
		fmt.Fprintf(&got, "== %s\n", c.Name)
		tr, err := applyTar(Limits{}, c.Layers...)
		if (err != nil) != c.Refused {
			t.Errorf("%s: want refused: %v, got error %v", c.Name, c.Refused, err)
		}
		if err != nil {
			fmt.Fprintf(&got, "refused: %s\n", abbreviate(err.Error()))
			continue
		}
		dump(&got, "/", tr.Root, 0)
	}
	golden.Compare(t, "odd.txt", got.String())
}

// dump writes a line for each entry of a tree, indented by depth.
func dump(w io.Writer, name string, n *Node, depth int) {
	fmt.Fprintf(w, "%*s%s %06o %d:%d n%d %d.%09d", depth, "", abbreviate(fmt.Sprintf("%q", name)),
		n.Mode, n.UID, n.GID, n.Nlink, n.Mtime.Sec, n.Mtime.Nsec)
	switch n.Mode & ModeType {
	case ModeChar, ModeBlock:
		fmt.Fprintf(w, " device %#x", n.Rdev)
	case ModeSymlink:
		fmt.Fprintf(w, " %d -> %s", n.Size, abbreviate(fmt.Sprintf("%q", n.Link)))
	case ModeRegular:
		fmt.Fprintf(w, " %d %s", n.Size, abbreviate(fmt.Sprintf("%q", n.Content.Inline)))
		for _, x := range n.Content.Extents {
			fmt.Fprintf(w, " %d of %s", x.Length, x.ID.Short())
		}
	}
	for _, x := range n.Xattrs {
		fmt.Fprintf(w, " %s=%s", abbreviate(x.Name), abbreviate(fmt.Sprintf("%x", x.Value)))
	}
	fmt.Fprintln(w)
	for _, child := range n.Children() {
		dump(w, child.Name, child.Node, depth+1)
	}
}

func abbreviate(s string) string {
	if len(s) <= 200 {
		return s
	}
	return fmt.Sprintf("%s…(%d bytes, %s)", s[:20], len(s), chunk.Sum([]byte(s)).Short())
}

// wholeFile makes a file of any size a single chunk.
func wholeFile(e *Entry, r io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(r, e.Size))
	if err != nil {
		return err
	}
	if int64(len(content)) < e.Size {
		return io.ErrUnexpectedEOF
	}
	if e.Size <= InlineLimit {
		e.Content.Inline = content
		return nil
	}
	e.Content.Extents = []Extent{{ID: chunk.Sum(content), Length: e.Size}}
	return nil
}

// applyTar scans layers into records, and merges the records.
func applyTar(limits Limits, layers ...[]byte) (*Tree, error) {
	sources := make([]LayerSource, len(layers))
	for i, layer := range layers {
		var record bytes.Buffer
		w := NewRecordWriter(&record)
		if err := Scan(bytes.NewReader(layer), limits, wholeFile, w.Add); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		sources[i] = NewRecordReader(&record)
	}
	return Apply(context.Background(), sources, limits)
}

func TestErrorNamesLayerAndEntry(t *testing.T) {
	_, err := applyTar(Limits{}, tarball.Of(tarball.Dir("a")),
		tarball.Of(tarball.File("b", ""), tarball.Link("./c", "nothing")))
	var refused *EntryError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want an EntryError", err)
	}
	if refused.Layer != 1 || refused.Entry != "./c" {
		t.Errorf("got layer %d, entry %q; want layer 1, entry \"./c\"", refused.Layer, refused.Entry)
	}
}

func TestLimitOfEntries(t *testing.T) {
	// Each entry creates eleven parent directories.
	items := make([]tarball.Item, 10)
	for i := range items {
		items[i] = tarball.File(fmt.Sprintf("%d/a/b/c/d/e/f/g/h/i/j/k", i), "")
	}
	layer := tarball.Of(items...)
	for _, c := range []struct {
		limit int64
		ok    bool
	}{{9, false}, {10, false}, {119, false}, {120, true}, {0, true}} {
		_, err := applyTar(Limits{Entries: c.limit}, layer)
		var beyond *LimitError
		if ok := err == nil; ok != c.ok || !ok && (!errors.As(err, &beyond) || beyond.Limit != c.limit) {
			t.Errorf("limit %d: got %v, want success: %t", c.limit, err, c.ok)
		}
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Apply(ctx, []LayerSource{&entries{}}, Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestApplyReturnsErrorsOfLayers(t *testing.T) {
	if _, err := Apply(context.Background(), []LayerSource{&entries{err: errTest}}, Limits{}); !errors.Is(err,
		errTest) {
		t.Errorf("got %v, want the layer's error", err)
	}
	if _, err := Apply(context.Background(), nil, Limits{}); err == nil {
		t.Error("apply a chain without layers: got no error")
	}
}

func TestApplyChecksContent(t *testing.T) {
	source := &entries{list: []*Entry{{Type: '0', Name: "a", Size: 3, Content: Content{Inline: []byte("no")}}}}
	var refused *EntryError
	if _, err := Apply(context.Background(), []LayerSource{source}, Limits{}); !errors.As(err, &refused) {
		t.Errorf("got %v, want an EntryError", err)
	}
}

var errTest = errors.New("test")

// entries is a LayerSource that ends with err, or with io.EOF.
type entries struct {
	list []*Entry
	err  error
}

func (s *entries) Next() (*Entry, error) {
	if len(s.list) == 0 {
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
	e := s.list[0]
	s.list = s.list[1:]
	return e, nil
}

// Nested symlinks in a small layer are bounded by the limit of lookups: each entry resolves a long
// path 255 times.
func TestNestedLinksAreBounded(t *testing.T) {
	deep := strings.Repeat("d/", 1900)
	items := []tarball.Item{tarball.Dir(deep)}
	for i := range 255 {
		items = append(items, tarball.Symlink(fmt.Sprintf("%sl%d", deep, i), fmt.Sprintf("l%d", i+1)))
	}
	b := &budget{ctx: t.Context(), steps: maxSteps - 2_000_000}
	u := newUnpacker(b, nil)
	var err error
	for range 100 {
		if err != nil {
			break
		}
		err = Scan(bytes.NewReader(tarball.Of(append(items, tarball.File(deep+"l0/f", ""))...)), Limits{}, wholeFile,
			u.unpack)
	}
	var beyond *LimitError
	if !errors.As(err, &beyond) || beyond.Limit != maxSteps {
		t.Errorf("got %v, want a LimitError of %d", err, maxSteps)
	}
}
