package trees_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/node/prefetch"
	"lighter/node/trees"
)

// memory is a source with one index and no locations.
type memory struct {
	tree  chunk.ID
	index []byte
}

func (m memory) Index(_ context.Context, id chunk.ID, take func(io.Reader) error) error {
	if id != m.tree {
		return chunk.ErrNotFound
	}
	return take(bytes.NewReader(m.index))
}

func (memory) Locations(context.Context, chunk.ID, chunk.ID, func(io.Reader) error) error {
	return chunk.ErrNotFound
}

// oneFile makes the index of a tree with one file.
func oneFile() (memory, error) {
	data := []byte("a chunk")
	file := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(data))}
	file.Content.Extents = []tree.Extent{{ID: chunk.Sum(data), Length: int64(len(data))}}
	root := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "file", Node: file}})
	var metadata, all bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		return memory{}, err
	}
	err = made.Write(&all, &metadata)
	return memory{made.ID(), all.Bytes()}, err
}

// Ensure fetches a tree. After that the store needs no network to open it.
func ExampleStore() {
	root, err := os.MkdirTemp("", "trees")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	source, err := oneFile()
	if err == nil {
		err = trees.Prepare(root)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	log := slog.New(slog.DiscardHandler)
	noChunks := prefetch.New(func() prefetch.Source { return nil }, prefetch.Options{}, log)
	store := trees.Open(root, source, nil, noChunks, log)
	defer store.Close()
	if err := store.Ensure(context.Background(), source.tree, func() { fmt.Println("begun") }); err != nil {
		fmt.Println(err)
		return
	}
	isCached := func(chunk.ID) bool { return false }
	content, err := store.Content(context.Background(), source.tree, isCached)
	fmt.Println(store.Has(source.tree), content.Chunks, content.Bytes, content.CachedChunks, err)
	// Output:
	// begun
	// true 1 7 0 <nil>
}
