package index_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
)

// oneFile returns a tree with one file of one chunk.
func oneFile() *tree.Tree {
	data := []byte("a chunk")
	file := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(data))}
	file.Content.Extents = []tree.Extent{{ID: chunk.Sum(data), Length: int64(len(data))}}
	return &tree.Tree{Root: tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "file", Node: file}})}
}

// A hub makes an index and signs its tree ID. A node receives it by that ID, and reads its two
// parts.
func Example() {
	// The hub. It can write the metadata image to a file.
	var metadata, sent bytes.Buffer
	made, err := index.Make(oneFile(), &metadata)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := made.Write(&sent, &metadata); err != nil {
		fmt.Println(err)
		return
	}

	// The node. It writes the parts to two files.
	var extentMap, image bytes.Buffer
	if _, err := index.Receive(&sent, made.ID(), &extentMap, &image); err != nil {
		fmt.Println(err)
		return
	}
	m, err := index.OpenMap(bytes.NewReader(extentMap.Bytes()), made.ID(), index.NewPages(16))
	if err != nil {
		fmt.Println(err)
		return
	}
	i, _ := m.Find(0)
	extent, err := m.Extent(i)
	fmt.Println(m.Files, extent.Offset, extent.Length, extent.ID == chunk.Sum([]byte("a chunk")), err)
	// Output: 1 0 7 true <nil>
}

// A statement binds a chain to a tree. A node accepts it only with a signature of a key that it
// knows.
func ExampleStatement() {
	public, private, _ := ed25519.GenerateKey(nil)
	s := index.Sign(private, "sha256:chain", chunk.Sum([]byte("a tree")))
	fmt.Println(s.Verify("sha256:chain", []ed25519.PublicKey{public}))
	fmt.Println(s.Verify("sha256:other", []ed25519.PublicKey{public}))
	// Output:
	// <nil>
	// the statement is about chain "sha256:chain", not "sha256:other"
}

// Locations name the unit of each extent's chunk, and the packs that a start needs.
func ExampleLocations() {
	treeID, pack := chunk.Sum([]byte("a tree")), chunk.Sum([]byte("a pack"))
	b := index.NewLocations(treeID)
	b.Add(chunk.Unit{Pack: pack, N: 3})
	b.Startup(index.Startup{Pack: pack, Units: []uint32{1000}, AtMount: true})
	encoded := b.Encode()

	l, err := index.OpenLocations(bytes.NewReader(encoded), int64(len(encoded)), treeID, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	unit, err := l.Unit(0)
	fmt.Println(unit.N, unit.Pack == pack, l.Startups()[0].Bytes(), err)
	// Output: 3 true 1000 <nil>
}
