package mount

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/format/tree"
	"lighter/node/fuse"
	"lighter/node/prefetch"
	"lighter/node/record"
	"lighter/node/trees"
)

var discard = slog.New(slog.DiscardHandler)

// openMounts opens the mounts below root. server may be nil if nothing is mounted.
func openMounts(root string, server *fuse.Server, index ...source) *Mounts {
	from := source{}
	if len(index) > 0 {
		from = index[0]
	}
	ahead := prefetch.New(func() prefetch.Source { return noChunks{} }, prefetch.Options{}, discard)
	return New(root, Auto, trees.Open(root, from, server, ahead, discard), server, record.New(false, nil), discard)
}

// noChunks is a prefetch.Source without chunks.
type noChunks struct{ prefetch.Source }

func (noChunks) Received() map[string]int64         { return nil }
func (noChunks) Has(chunk.ID) bool                  { return false }
func (noChunks) Cached(chunk.Ref, int, []byte) bool { return false }

// source is a trees.Source with the index of one tree.
type source struct {
	tree  chunk.ID
	index []byte
}

func (s source) Index(_ context.Context, _ chunk.ID, take func(io.Reader) error) error {
	return take(bytes.NewReader(s.index))
}

func (source) Locations(context.Context, chunk.ID, chunk.ID, func(io.Reader) error) error {
	return errors.New("no locations")
}

// oneFile returns a source with a tree of one file, which has one chunk.
func oneFile(t *testing.T, data []byte) source {
	t.Helper()
	file := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(data))}
	file.Content.Extents = []tree.Extent{{ID: chunk.Sum(data), Length: int64(len(data))}}
	root := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "file", Node: file}})
	var metadata, whole bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err == nil {
		err = made.Write(&whole, bytes.NewReader(metadata.Bytes()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return source{made.ID(), whole.Bytes()}
}

// takenOver returns the server of a daemon that has taken over a connection.
func takenOver(t *testing.T, root string) *fuse.Server {
	t.Helper()
	r, w, err := os.Pipe() // a connection without requests
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	server, err := fuse.Adopt([]*os.File{r}, Devices(root), fuse.State{Flags: gofuse.CAP_HAS_RESEND}, discard)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// put prepares a root, and fetches a tree of one file to it.
func put(t *testing.T) (root string, from source) {
	t.Helper()
	root, from = t.TempDir(), oneFile(t, bytes.Repeat([]byte{7}, 8192))
	if err := Prepare(root); err != nil {
		t.Fatal(err)
	}
	if err := openMounts(root, nil, from).trees.Ensure(t.Context(), from.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	return root, from
}

// NoteStart records a start only if nothing of the tree can have been read before.
func TestNoteStart(t *testing.T) {
	root, from := put(t)
	m := openMounts(root, takenOver(t, root))
	if err := m.Recover(true); err != nil {
		t.Fatal(err)
	}
	var recorder *record.Recorder
	records := func() bool {
		recorder = record.New(true, func(trace.Trace) {})
		m.recorder = recorder
		m.NoteStart(from.tree)
		return recorder.Stats().Active == 1
	}
	if records() {
		t.Error("a start is recorded though its tree is not mounted")
	}
	if m.set(from.tree, Mount{Kind: KnownDevice}); records() {
		t.Error("a start is recorded though other mounts may have read the tree")
	}
	if m.set(from.tree, Mount{Kind: NewDevice}); !records() {
		t.Error("the start of a newly mounted tree is not recorded")
	}
	first, d := recorder, m.trees.Served(from.tree).Device
	if _, err := d.ReadAt(t.Context(), make([]byte, 4096), 1<<40); err != nil { // after the end: nothing is fetched
		t.Fatal(err)
	}
	if records() {
		t.Error("a start is recorded though its tree was read")
	}
	m.recorder = first
	if err := m.unserve(from.tree); err != nil || first.Stats().Active != 0 {
		t.Errorf("unserve: got %v, recorder %+v; want no error and no recording", err, first.Stats())
	}
}

// fakeKernel has a mount(2) that records its options and mounts nothing.
type fakeKernel struct{ options []string }

// mount records a call of mount(2).
func (k *fakeKernel) mount(_, _, _ string, _ uintptr, data string) error {
	k.options = append(k.options, data)
	return nil
}

// room is a trees.Room with one chunk.
type room struct{ data []byte }

func (r room) Read(_ chunk.Ref, offset int, dst []byte) bool {
	return copy(dst, r.data[offset:]) == len(dst)
}
func (room) Reserve(int64) error  { return nil }
func (room) Count(int64)          {}
func (room) Release(int64)        {}
func (room) OnShort(func() int64) {}

// A tree is mounted once for all callers. It is mounted again, over the existing mount, when a
// local device is made or removed, and when MountAgain is called.
func TestMountKinds(t *testing.T) {
	root, from := put(t)
	m := openMounts(root, takenOver(t, root), from)
	if err := m.trees.UseRoom(room{bytes.Repeat([]byte{7}, 8192)}); err != nil {
		t.Fatal(err)
	}
	calls := &fakeKernel{}
	m.kernel.mount = calls.mount
	check := func(what string, want Kind, mounts int) {
		t.Helper()
		calls.options = nil
		for range 2 {
			if dir, err := m.Mount(t.Context(), from.tree); err != nil ||
				dir != filepath.Join(root, "mounts", from.tree.String()) {
				t.Fatalf("%s: mounted at %q, error %v; want the tree's directory below mounts", what, dir, err)
			}
		}
		if got, _ := m.get(from.tree); got.Kind != want || len(calls.options) != mounts {
			t.Errorf("%s: got kind %d after %d mounts, want %d after %d", what, got.Kind, len(calls.options), want,
				mounts)
		}
	}
	if err := m.MountAgain(t.Context(), from.tree); err != nil || len(m.Mounted()) != 0 {
		t.Errorf("MountAgain of a tree that is not mounted: error %v, mounted %v; want neither", err, m.Mounted())
	}
	m.Unwatch(from.tree)
	check("first", NewDevice, 1)
	if err := m.trees.MakeLocal(t.Context(), from.tree); err != nil {
		t.Fatal(err)
	}
	check("with a local device", LocalDevice, 1)
	if list := m.Mounted(); len(list) != 1 || !list[0].Local || list[0].Mode != File {
		t.Errorf("Mounted returns %+v, want one tree with a local device, in mode file", list)
	}
	if err := m.MountAgain(t.Context(), from.tree); err != nil {
		t.Fatal(err)
	}
	check("watched", KnownDevice, 0)
	m.Unwatch(from.tree)
	check("not watched any more", LocalDevice, 1)
	if err := os.Truncate(m.trees.LocalDevice(from.tree), 100); err == nil {
		check("with a local device that is too short", LocalDevice, 0) // only a new mount checks the size
	}
	for range maxAgain - 1 {
		if err := m.MountAgain(t.Context(), from.tree); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.MountAgain(t.Context(), from.tree); err == nil {
		t.Errorf("MountAgain succeeded more than %d times, want an error", maxAgain)
	}
	m.Unwatch(from.tree)
	check("with a local device that cannot be used", KnownDevice, 1)
	if _, has := m.trees.HasLocal(from.tree); has {
		t.Error("a local device that cannot be used was not removed")
	}
}

// If the kernel cannot mount a tree, the tree is not served, and stays on the disk.
func TestMountFails(t *testing.T) {
	root, from := put(t)
	m := openMounts(root, takenOver(t, root), from)
	m.kernel.mount = func(string, string, string, uintptr, string) error { return unix.EINVAL }
	if _, err := m.Mount(t.Context(), from.tree); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, want %v", err, unix.EINVAL)
	}
	if m.trees.Served(from.tree) != nil || len(m.Mounted()) != 0 || !m.trees.Has(from.tree) {
		t.Errorf("a tree that cannot be mounted: served %t, mounted %v, on the disk %t; want only on the disk",
			m.trees.Served(from.tree) != nil, m.Mounted(), m.trees.Has(from.tree))
	}
}
