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

// room has chunks, and counts what is taken of it.
type room struct {
	chunks map[chunk.ID][]byte
	free   int64
	taken  int64
	yield  func() int64
}

func (r *room) Read(ref chunk.Ref, offset int, dst []byte) bool {
	return copy(dst, r.chunks[ref.ID][min(offset, len(r.chunks[ref.ID])):]) == len(dst)
}

func (r *room) Take(bytes int64) error {
	if r.taken+bytes > r.free {
		return disk.ErrFull
	}
	r.taken += bytes
	return nil
}

func (r *room) Hold(bytes int64)          { r.taken += bytes }
func (r *room) Give(bytes int64)          { r.taken -= bytes }
func (r *room) Beside(yield func() int64) { r.yield = yield }

func nth(i int) []byte { return bytes.Repeat([]byte{byte(i), 7}, 2048) }

// openLocal opens a tree all of whose chunks are in a room.
func openLocal(t *testing.T) (*Store, chunk.ID, *room) {
	t.Helper()
	r := &room{chunks: map[chunk.ID][]byte{}, free: 1 << 20}
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

// left tells what there is of a local device, finished or not.
func left(t *testing.T, trees *Store) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(trees.root, "trees/*/local*/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A local device holds what the device does. It counts while it is there, it is found
// by the next daemon, and goes when room is needed, unless it is mounted.
func TestLocalDevice(t *testing.T) {
	trees, tree, r := openLocal(t)
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
		t.Errorf("it has %d bytes, want %d: %v", len(got), len(want), err)
	}
	if size, ok := trees.HasLocal(tree); !ok || size != 100*4096 || r.taken != size {
		t.Errorf("it counts %d, %t; taken %d", size, ok, r.taken)
	}
	if after, more := trees.Size(tree); after != before+100*4096 || more != files+2 {
		t.Errorf("with it the tree takes %d bytes in %d files, before %d in %d", after, more, before, files)
	}
	unfinished := filepath.Join(trees.dir(tree), localNew) // of a daemon that was killed
	if err := errors.Join(os.Mkdir(unfinished, 0o700), os.WriteFile(filepath.Join(unfinished, "device"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	next := Open(trees.root, trees.source, nil, trees.prefetcher, trees.log)
	found := &room{}
	if err := next.UseRoom(found); err != nil {
		t.Fatal(err)
	}
	if size, ok := next.HasLocal(tree); !ok || size < 100*4096 || found.taken != size || len(left(t, next)) != 2 {
		t.Errorf("the next daemon counts %d, %t; taken %d; there is %v", size, ok, found.taken, left(t, next))
	}
	next.SetLocalMounted(tree, true)
	if freed := found.yield() + next.DropLocal(tree); freed != 0 || len(left(t, next)) != 2 {
		t.Errorf("one that is mounted was removed, for %d bytes", freed)
	}
	next.SetLocalMounted(tree, false)
	if freed := found.yield(); freed < 100*4096 || found.taken != 0 || len(left(t, next)) > 0 {
		t.Errorf("freed %d, taken %d, left %v", freed, found.taken, left(t, next))
	}
	if freed := found.yield() + next.DropLocal(tree); freed != 0 {
		t.Errorf("freed %d once more", freed)
	}
}

// What goes wrong leaves nothing behind, and nothing counted.
func TestLocalDeviceThatCannotBeMade(t *testing.T) {
	for name, test := range map[string]struct {
		upset func(trees *Store, tree chunk.ID, r *room) context.Context
		is    func(error) bool
	}{
		"a chunk is missing": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			delete(r.chunks, chunk.Sum(nth(77)))
			return context.Background()
		}, func(err error) bool { return errors.Is(err, ErrNotCached) }},
		"a chunk is another": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			r.chunks[chunk.Sum(nth(77))] = nth(78)
			return context.Background()
		}, func(err error) bool { return errors.As(err, new(*chunk.InvalidError)) }},
		"no room": {func(_ *Store, _ chunk.ID, r *room) context.Context {
			r.free = 99 * 4096
			return context.Background()
		}, func(err error) bool { return errors.Is(err, disk.ErrFull) }},
		"it is called off": {func(*Store, chunk.ID, *room) context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"the tree went": {func(trees *Store, tree chunk.ID, _ *room) context.Context {
			_ = remove(trees, tree)
			return context.Background()
		}, func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
	} {
		t.Run(name, func(t *testing.T) {
			trees, tree, r := openLocal(t)
			err := trees.MakeLocal(test.upset(trees, tree, r), tree)
			if !test.is(err) {
				t.Errorf("got %v", err)
			}
			if _, ok := trees.HasLocal(tree); ok || r.taken != 0 || len(left(t, trees)) > 0 {
				t.Errorf("taken %d, left %v", r.taken, left(t, trees))
			}
		})
	}
}

// A local device that is disabled is not used by mounts, until it is enabled.
func TestDisableLocal(t *testing.T) {
	trees, tree, _ := openLocal(t)
	if err := trees.MakeLocal(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	if !trees.UsesLocal(tree) {
		t.Error("a new local device is not used")
	}
	if trees.DisableLocal(tree); trees.UsesLocal(tree) {
		t.Error("a disabled local device is used")
	}
	if trees.EnableLocal(tree); !trees.UsesLocal(tree) {
		t.Error("an enabled local device is not used")
	}
}

// A bit that flips is found by the scrub: the file goes, and those who may have read it
// are named.
func TestScrubOfALocalDevice(t *testing.T) {
	for _, mounted := range []bool{false, true} {
		trees, tree, r := openLocal(t)
		if err := trees.MakeLocal(t.Context(), tree); err != nil {
			t.Fatal(err)
		}
		m, err := trees.open(tree)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		trees.SetLocalMounted(tree, mounted)
		trees.served[tree] = m
		if n, err := trees.Scrub(t.Context(), 0); n != 0 || err != nil || len(left(t, trees)) != 2 {
			t.Errorf("of a whole one: %d, %v", n, err)
		}
		b, err := os.ReadFile(trees.LocalDevice(tree))
		if err != nil {
			t.Fatal(err)
		}
		b[50*4096] ^= 1
		if err := errors.Join(os.Chmod(trees.LocalDevice(tree), 0o600), os.WriteFile(trees.LocalDevice(tree), b, 0o600)); err != nil {
			t.Fatal(err)
		}
		if n, err := trees.Scrub(t.Context(), 0); n != 1 || err != nil || r.taken != 0 || len(left(t, trees)) > 0 {
			t.Errorf("of a damaged one: %d, %v; taken %d, left %v", n, err, r.taken, left(t, trees))
		}
		if lost := trees.Lost()[tree] != nil; lost != mounted {
			t.Errorf("mounted: %t, named: %t", mounted, lost)
		}
	}
}

// A tree's local device goes with it, and with an index that is fetched anew.
func TestLocalDeviceGoesWithItsTree(t *testing.T) {
	trees, tree, r := openLocal(t)
	if err := trees.MakeLocal(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	if err := trees.refetch(t.Context(), tree); err != nil || r.taken != 0 || len(left(t, trees)) > 0 {
		t.Errorf("fetched anew: %v, taken %d, left %v", err, r.taken, left(t, trees))
	}
	if err := trees.MakeLocal(t.Context(), tree); err != nil || len(left(t, trees)) != 2 {
		t.Fatal(err)
	}
	if err := remove(trees, tree); err != nil || r.taken != 0 {
		t.Errorf("removed: %v, taken %d", err, r.taken)
	}
}
