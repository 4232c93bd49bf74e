package index

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/test/testkit/golden"
	"lighter/test/testkit/tarball"
)

// A chain of layers has the same tree ID on all machines. A change that breaks this test needs a
// new format number.
func TestTreeIDGolden(t *testing.T) {
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	chains := append(tarball.Odd(), tarball.Chain{Name: "contents", Layers: [][]byte{
		tarball.Of(tarball.File("a", string(noise)), tarball.Link("b", "a"),
			tarball.File("c", string(noise[:70_000])+string(make([]byte, 1<<18))),
			tarball.File("d/513", string(noise[:513])), tarball.File("d/512", string(noise[:512]))),
		tarball.Of(tarball.Whiteout("b"), tarball.File("e", string(noise[:300_000])), tarball.File("f", string(noise))),
	}})
	var out strings.Builder
	for _, c := range chains {
		if c.Refused {
			continue
		}
		m, err := Make(applyLayers(t, c.Layers), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		fmt.Fprintf(&out, "%s %s\n", m.ID(), c.Name)
	}
	golden.Compare(t, "treeid.golden", out.String())
}

// applyLayers returns the tree of layers, made as a hub does.
func applyLayers(t *testing.T, layers [][]byte) *tree.Tree {
	t.Helper()
	var splitter chunk.Splitter
	content := func(e *tree.Entry, r io.Reader) error {
		if e.Size <= tree.InlineLimit {
			e.Content.Inline = make([]byte, e.Size)
			_, err := io.ReadFull(r, e.Content.Inline)
			return err
		}
		return splitter.Split(r, e.Size, func(data []byte, zeros int64) error {
			x := tree.Extent{Length: zeros}
			if data != nil {
				x = tree.Extent{ID: chunk.Sum(data), Length: int64(len(data))}
			}
			e.Content.Extents = append(e.Content.Extents, x)
			return nil
		})
	}
	sources := make([]tree.LayerSource, len(layers))
	for i, layer := range layers {
		var record bytes.Buffer
		w := tree.NewRecordWriter(&record)
		if err := tree.Scan(bytes.NewReader(layer), tree.Limits{}, content, w.Add); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sources[i] = tree.NewRecordReader(&record)
	}
	made, err := tree.Apply(context.Background(), sources, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
