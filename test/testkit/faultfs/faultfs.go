// Package faultfs promises a directory whose disk fails, or hangs, when a test says so, and
// as it says: a FUSE file system that hands everything on to another directory, but
// for the operations that are to fail, or to hang. It is for faults that no real file system here
// can be made to have at a chosen moment.
//
// It needs root. The kernel caches no data of it, so each read and write of a
// process is one here.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// hangLimit is the longest that operations hang: nobody can kill a process that waits for
// an answer of its own file system, so a test that is stuck has to be freed.
const hangLimit = 2 * time.Minute

// Op is a kind of operation that can fail, or hang.
type Op string

// What can fail, or hang.
const (
	Read   Op = "read"
	Write  Op = "write"
	Open   Op = "open" // and create
	Unlink Op = "unlink"
)

// FS is a mounted one.
type FS struct {
	server *fuse.Server

	mu     sync.Mutex // guards what follows
	errnos map[Op]syscall.Errno
	failed map[Op]int
	hang   *hang // or nil
}

// hang is what waits until released is closed.
type hang struct {
	suffix   string // of the files' names
	ops      []Op
	waiting  map[Op]int
	released chan struct{}
}

// Mount mounts one on dir whose files are in backing.
func Mount(backing, dir string) (*FS, error) {
	f := &FS{errnos: map[Op]syscall.Errno{}, failed: map[Op]int{}}
	root, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		return nil, err
	}
	f.server, err = fs.Mount(dir, &node{root.(*fs.LoopbackNode), f}, &fs.Options{MountOptions: fuse.MountOptions{
		AllowOther: true, DirectMount: true, FsName: "faultfs", MaxWrite: 1 << 20}})
	if err != nil {
		return nil, fmt.Errorf("mount a faulty file system: %w", err)
	}
	return f, nil
}

// Fail has operations fail from now on; 0: no longer.
func (f *FS) Fail(errno syscall.Errno, ops ...Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		f.errnos[op] = errno
	}
}

// Failed tells how many operations have failed.
func (f *FS) Failed(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed[op]
}

// Hang has operations on files whose names end with suffix wait from now on, until Release
// or Close, or for two minutes. It replaces what hung before, which goes on.
func (f *FS) Hang(suffix string, ops ...Op) {
	f.Release()
	h := &hang{suffix: suffix, ops: ops, waiting: map[Op]int{}, released: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = h
	time.AfterFunc(hangLimit, func() { f.release(h) })
}

// Release has everything go on.
func (f *FS) Release() {
	f.mu.Lock()
	h := f.hang
	f.mu.Unlock()
	f.release(h)
}

func (f *FS) release(h *hang) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h != nil && h == f.hang {
		f.hang = nil
		close(h.released)
	}
}

// Hanging tells how many operations wait.
func (f *FS) Hanging(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hang == nil {
		return 0
	}
	return f.hang.waiting[op]
}

// await returns when an operation on a file of that name may go on.
func (f *FS) await(op Op, name string) {
	f.mu.Lock()
	h := f.hang
	waits := h != nil && slices.Contains(h.ops, op) && strings.HasSuffix(name, h.suffix)
	if waits {
		h.waiting[op]++
	}
	f.mu.Unlock()
	if waits {
		<-h.released
	}
}

// Close unmounts it, also from under those who use it. Nothing hangs any more: whatever
// they ask of it fails at once, or a process that ends while it waits for an answer of its own
// would never end.
func (f *FS) Close(dir string) error {
	f.Release()
	err := syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// before is what happens to an operation on a file before it is handed on.
func (f *FS) before(op Op, name string) syscall.Errno {
	f.await(op, name)
	f.mu.Lock()
	defer f.mu.Unlock()
	errno := f.errnos[op]
	if errno != 0 {
		f.failed[op]++
	}
	return errno
}

type node struct {
	*fs.LoopbackNode
	fs *FS
}

// WrapChild implements fs.NodeWrapChilder.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{child.(*fs.LoopbackNode), n.fs}
}

var (
	_ fs.NodeReader   = (*node)(nil)
	_ fs.NodeWriter   = (*node)(nil)
	_ fs.NodeOpener   = (*node)(nil)
	_ fs.NodeCreater  = (*node)(nil)
	_ fs.NodeUnlinker = (*node)(nil)
)

func (n *node) Read(ctx context.Context, h fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := n.fs.before(Read, n.Path(nil)); errno != 0 {
		return nil, errno
	}
	return h.(fs.FileReader).Read(ctx, dest, off)
}

func (n *node) Write(ctx context.Context, h fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := n.fs.before(Write, n.Path(nil)); errno != 0 {
		return 0, errno
	}
	return h.(fs.FileWriter).Write(ctx, data, off)
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.before(Open, n.Path(nil)); errno != 0 {
		return nil, 0, errno
	}
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	return h, fuse.FOPEN_DIRECT_IO, errno
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.before(Open, name); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, h, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, h, fuse.FOPEN_DIRECT_IO, errno
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.fs.before(Unlink, name); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}
