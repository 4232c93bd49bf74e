// Package filetree makes trees of random files for tests, with their extent maps and contents.
package filetree

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
)

// Tree is a tree of files.
type Tree struct {
	Extents *index.Map
	Image   []byte              // the bytes of its device
	Chunks  map[chunk.ID][]byte // the plain bytes of its chunks
	Half    map[chunk.ID]bool   // the chunks by a random bit: true for about half of them
}

// New makes a tree with a number of files. Each file has 1 to 5 extents: chunks of at most largest
// bytes, and holes. Equal arguments give equal trees.
func New(t testing.TB, files, largest int) *Tree {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	made := &Tree{Chunks: map[chunk.ID][]byte{}, Half: map[chunk.ID]bool{}}
	var children []tree.Dirent
	for i := range files {
		n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
		var content []byte
		for range 1 + r.IntN(5) {
			if r.IntN(4) == 0 {
				hole := make([]byte, 1+r.IntN(20000))
				content = append(content, hole...)
				n.Content.Extents = append(n.Content.Extents, tree.Extent{Length: int64(len(hole))})
				continue
			}
			plain := make([]byte, 1+r.IntN(largest))
			for k := range plain {
				plain[k] = byte(r.Uint32())
			}
			id := chunk.Sum(plain)
			made.Chunks[id] = plain
			made.Half[id] = r.IntN(2) == 0
			content = append(content, plain...)
			n.Content.Extents = append(n.Content.Extents, tree.Extent{ID: id, Length: int64(len(plain))})
		}
		n.Size = int64(len(content))
		made.Image = append(made.Image, content...)
		made.Image = append(made.Image, make([]byte, (4096-len(made.Image)%4096)%4096)...)
		children = append(children, tree.Dirent{Name: fmt.Sprintf("%03d", i), Node: n})
	}
	made.Extents = ExtentsOf(t, tree.NewDir(tree.Node{Mode: 0o755}, children))
	if made.Extents.DeviceSize != int64(len(made.Image)) {
		t.Fatalf("the device has %d bytes, want %d", made.Extents.DeviceSize, len(made.Image))
	}
	return made
}

// ExtentsOf returns the extent map of a tree, built and opened in the same way as by a hub and a
// node.
func ExtentsOf(t testing.TB, root *tree.Node) *index.Map {
	t.Helper()
	return Write(t, root, io.Discard)
}

// Write is ExtentsOf, and writes the tree's metadata image to w.
func Write(t testing.TB, root *tree.Node, w io.Writer) *index.Map {
	t.Helper()
	var metadata, whole, extents bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, &metadata); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, made.ID(), &extents, w); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), made.ID(), index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	return m
}
