package trees

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lighter/format/chunk"
	"lighter/store/disk"
)

// room is a Room in memory.
type room struct {
	chunks map[chunk.ID][]byte
	size   int64 // bytes in all
	taken  int64 // bytes of Reserve and Count, less those of Release
	yield  func() int64
}

func (r *room) Read(ref chunk.Ref, offset int, dst []byte) bool {
	return copy(dst, r.chunks[ref.ID][min(offset, len(r.chunks[ref.ID])):]) == len(dst)
}

func (r *room) Reserve(bytes int64) error {
	if r.taken+bytes > r.size {
		return disk.ErrFull
	}
	r.taken += bytes
	return nil
}

func (r *room) Count(bytes int64)          { r.taken += bytes }
func (r *room) Release(bytes int64)        { r.taken -= bytes }
func (r *room) OnShort(yield func() int64) { r.yield = yield }

func nth(i int) []byte { return bytes.Repeat([]byte{byte(i), 7}, 2048) }

// openWithRoom fetches a tree, and returns its store and a room that has all its chunks.
func openWithRoom(t *testing.T) (*Store, chunk.ID, *room) {
	t.Helper()
	r := &room{chunks: map[chunk.ID][]byte{}, size: 1 << 20}
	h := newHubOf(t, "file", func(i int) chunk.ID {
		r.chunks[chunk.Sum(nth(i))] = nth(i)
		return chunk.Sum(nth(i))
	})
	trees := openTrees(t, h)
	if err := trees.UseRoom(r); err != nil {
		t.Fatal(err)
	}
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	return trees, h.tree, r
}

// localFiles lists the files of local devices, finished or not. A finished one has two: the bytes
// of the device, and a hard link to the metadata image.
func localFiles(t *testing.T, trees *Store) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(trees.root, "trees/*/local*/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A local device has the bytes of the device. Its size is counted while it exists, also by the next
// daemon. When space is needed, it is removed, unless it is mounted.
func TestLocalDevice(t *testing.T) {
	trees, tree, r := openWithRoom(t)
	before, files := trees.Size(tree)
	for range 2 {
		if err := trees.MakeLocal(t.Context(), tree); err != nil {
			t.Fatal(err)
		}
	}
	var want []byte
	for i := range 100 {
		want = append(want, nth(i)...)
	}
	if got, err := os.ReadFile(trees.LocalDevice(tree)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the local device has %d bytes, want %d: %v", len(got), len(want), err)
	}
	if size, ok := trees.HasLocal(tree); !ok || size != 100*4096 || r.taken != size {
		t.Errorf("local device: exists %t, size %d, %d bytes reserved; want both numbers to be %d", ok, size, r.taken,
			100*4096)
	}
	if after, more := trees.Size(tree); after != before+100*4096 || more != files+2 {
		t.Errorf("the tree has %d bytes in %d inodes with its local device, want %d in %d", after, more,
			before+100*4096, files+2)
	}
	unfinished := filepath.Join(trees.dir(tree), localNew) // left by a daemon that was killed
	if err := errors.Join(os.Mkdir(unfinished, 0o700),
		os.WriteFile(filepath.Join(unfinished, "device"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	next := Open(trees.root, trees.source, noServer{}, trees.prefetcher, trees.log)
	found := &room{}
	if err := next.UseRoom(found); err != nil {
		t.Fatal(err)
	}
	if size, ok := next.HasLocal(tree); !ok || size < 100*4096 || found.taken != size || len(localFiles(t, next)) != 2 {
		t.Errorf("next daemon: local device exists %t, size %d, %d bytes reserved, files %v; want at least %d bytes, "+
			"as many reserved, two files", ok, size, found.taken, localFiles(t, next), 100*4096)
	}
	mounted := true
	next.AskMounted(func(chunk.ID) bool { return mounted })
	if freed := found.yield() + next.DropLocal(tree); freed != 0 || len(localFiles(t, next)) != 2 {
		t.Errorf("mounted local device: freed %d bytes, files %v; want none freed, two files", freed,
			localFiles(t, next))
	}
	mounted = false
	if freed := found.yield(); freed < 100*4096 || found.taken != 0 || len(localFiles(t, next)) > 0 {
		t.Errorf("freed %d bytes, want at least %d; %d bytes are reserved, files %v; want none", freed, 100*4096,
			found.taken, localFiles(t, next))
	}
	if freed := found.yield() + next.DropLocal(tree); freed != 0 {
		t.Errorf("freed %d bytes again, want none", freed)
	}
}

// If MakeLocal fails, it leaves no file and no reserved bytes behind.
func TestLocalDeviceThatCannotBeMade(t *testing.T) {
	for name, test := range map[string]struct {
		upset func(trees *Store, tree chunk.ID, r *room) context.Context
		is    func(error) bool // whether MakeLocal returns the expected error
	}{
		"a chunk is missing": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			delete(r.chunks, chunk.Sum(nth(77)))
			return context.Background()
		}, func(err error) bool { return errors.Is(err, ErrNotCached) }},
		"a chunk has wrong bytes": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			r.chunks[chunk.Sum(nth(77))] = nth(78)
			return context.Background()
		}, func(err error) bool { return errors.As(err, new(*chunk.InvalidError)) }},
		"no room": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			r.size = 99 * 4096
			return context.Background()
		}, func(err error) bool { return errors.Is(err, disk.ErrFull) }},
		"it is cancelled": {func(*Store, chunk.ID, *room) context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"the tree is removed": {func(trees *Store, tree chunk.ID, _ *room) context.Context {
			_ = remove(trees, tree)
			return context.Background()
		}, func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
	} {
		t.Run(name, func(t *testing.T) {
			trees, tree, r := openWithRoom(t)
			err := trees.MakeLocal(test.upset(trees, tree, r), tree)
			if !test.is(err) {
				t.Errorf("got the unexpected error %v", err)
			}
			if _, ok := trees.HasLocal(tree); ok || r.taken != 0 || len(localFiles(t, trees)) > 0 {
				t.Errorf("local device exists: %t; %d bytes are reserved, files %v; want none of these", ok, r.taken,
					localFiles(t, trees))
			}
		})
	}
}

// Scrub finds a flipped bit in a local device and removes the device. If the device was mounted,
// Lost lists its tree.
func TestScrubOfALocalDevice(t *testing.T) {
	for _, mounted := range []bool{false, true} {
		trees, tree, r := openWithRoom(t)
		if err := trees.MakeLocal(t.Context(), tree); err != nil {
			t.Fatal(err)
		}
		m, err := trees.open(tree)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		trees.AskMounted(func(chunk.ID) bool { return mounted })
		trees.served[tree] = m
		if n, err := trees.Scrub(t.Context(), 0); n != 0 || err != nil || len(localFiles(t, trees)) != 2 {
			t.Errorf("intact local device: %d damaged, error %v, files %v; want 0 damaged, two files", n, err,
				localFiles(t, trees))
		}
		b, err := os.ReadFile(trees.LocalDevice(tree))
		if err != nil {
			t.Fatal(err)
		}
		b[50*4096] ^= 1
		if err := errors.Join(os.Chmod(trees.LocalDevice(tree), 0o600),
			os.WriteFile(trees.LocalDevice(tree), b, 0o600)); err != nil {
			t.Fatal(err)
		}
		if n, err := trees.Scrub(t.Context(), 0); n != 1 || err != nil || r.taken != 0 ||
			len(localFiles(t, trees)) > 0 {
			t.Errorf("damaged local device: %d damaged, error %v, want 1; %d bytes are reserved, files %v; want none",
				n, err, r.taken, localFiles(t, trees))
		}
		if lost := trees.Lost()[tree] != nil; lost != mounted {
			t.Errorf("mounted: %t, listed as lost: %t; want the same", mounted, lost)
		}
	}
}

// A local device is removed with its tree, and when the tree's index is fetched again.
func TestLocalDeviceGoesWithItsTree(t *testing.T) {
	trees, tree, r := openWithRoom(t)
	if err := trees.MakeLocal(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	if err := trees.refetch(t.Context(), tree); err != nil || r.taken != 0 || len(localFiles(t, trees)) > 0 {
		t.Errorf("fetched again: error %v, %d bytes are reserved, files %v; want none", err, r.taken,
			localFiles(t, trees))
	}
	if err := trees.MakeLocal(t.Context(), tree); err != nil || len(localFiles(t, trees)) != 2 {
		t.Fatalf("made again: error %v, files %v; want two files", err, localFiles(t, trees))
	}
	if err := remove(trees, tree); err != nil || r.taken != 0 {
		t.Errorf("removed: error %v, %d bytes are reserved, want none", err, r.taken)
	}
}
