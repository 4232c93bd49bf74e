package trees

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/node/fuse"
	"lighter/node/prefetch"
)

// putTree writes a tree with this number of extents to the disk, as download does.
func putTree(t testing.TB, root string, seed uint32, extents int) chunk.ID {
	t.Helper()
	file := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
	for i := range extents {
		id := chunk.Sum(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, seed), uint32(i)))
		file.Content.Extents = append(file.Content.Extents, tree.Extent{ID: id, Length: 4096})
		file.Size += 4096
	}
	dir := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "file", Node: file}})
	var metadata, whole bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: dir}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "trees", made.ID().String())
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	locations := index.NewLocations(made.ID())
	for range made.Extents {
		locations.Add(chunk.Unit{Pack: chunk.Sum([]byte("pack"))})
	}
	err = writeNew(filepath.Join(path, "map"), func(extents io.Writer) error {
		return writeNew(filepath.Join(path, "metadata"), func(metadata io.Writer) error {
			_, err := index.Receive(&whole, made.ID(), extents, metadata)
			return err
		})
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(path, "locations"), locations.Encode(), 0o400)
	}
	if err != nil {
		t.Fatal(err)
	}
	return made.ID()
}

// recovered opens the store and recovers it, as a daemon does after it has taken over the
// connection of the previous daemon.
func recovered(t testing.TB, root string) *Store {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r, w, err := os.Pipe() // a connection without requests
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	server, err := fuse.Adopt([]*os.File{r}, filepath.Join(root, "devices"),
		fuse.State{Flags: gofuse.CAP_HAS_RESEND}, log)
	if err != nil {
		t.Fatal(err)
	}
	trees := Open(root, nil, server, prefetch.New(func() prefetch.Source { return nil }, prefetch.Options{}, log), log)
	if err := trees.Recover(true); err != nil {
		t.Fatal(err)
	}
	if err := server.Detach(); err != nil {
		t.Fatal(err)
	}
	return trees
}

// A tree that cannot be recovered is listed by Lost, stays on the disk, and does not affect other
// trees.
func TestRecoverSaysWhatIsLost(t *testing.T) {
	root := t.TempDir()
	if err := Prepare(root); err != nil {
		t.Fatal(err)
	}
	var ids []chunk.ID
	for i := range uint32(40) {
		ids = append(ids, putTree(t, root, i, 200))
	}
	if err := os.Truncate(filepath.Join(root, "trees", ids[7].String(), "map"), 10); err != nil {
		t.Fatal(err)
	}
	trees := recovered(t, root)
	lost := trees.Lost()
	if len(lost) != 1 || lost[ids[7]] == nil || !trees.Has(ids[7]) {
		t.Errorf("lost trees: %v, want only %s, still on the disk", lost, ids[7].Short())
	}
	for i, id := range ids {
		if served := trees.Served(id) != nil; served != (i != 7) {
			t.Errorf("tree %d: served %v, want %v", i, served, i != 7)
		}
	}
	for tree := range trees.served {
		trees.served[tree].close()
	}
}

// BenchmarkRecover measures the part of a restart that grows with the number of trees.
func BenchmarkRecover(b *testing.B) {
	for _, size := range []struct{ trees, extents int }{{1, 100}, {200, 100}, {1, 20000}, {200, 20000}} {
		b.Run(fmt.Sprintf("%d trees of %d extents", size.trees, size.extents), func(b *testing.B) {
			root := b.TempDir()
			if err := Prepare(root); err != nil {
				b.Fatal(err)
			}
			for i := range size.trees {
				putTree(b, root, uint32(i), size.extents)
			}
			for b.Loop() {
				trees := recovered(b, root)
				b.StopTimer()
				if len(trees.Lost()) > 0 || len(trees.served) != size.trees {
					b.Fatal(trees.Lost())
				}
				for tree := range trees.served {
					trees.served[tree].close()
				}
				b.StartTimer()
			}
		})
	}
}
