// Package faultfs simulates a disk that fails or hangs. It is a FUSE file system that forwards
// operations to another directory. A test chooses the operations that fail or hang, and when.
//
// It needs root. The kernel does not cache its files, so each read and write of a process reaches
// the file system.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// hangLimit bounds the time that operations hang. A process that waits for its own file system
// cannot be killed, so a stuck test must be released.
const hangLimit = 2 * time.Minute

// Op is a kind of operation that can fail, or hang.
type Op string

// Operations that can fail or hang.
const (
	Read    Op = "read"
	Write   Op = "write"
	Open    Op = "open" // and create
	Unlink  Op = "unlink"
	SyncDir Op = "sync of a directory"
)

// FS is a mounted file system whose operations can fail or hang.
type FS struct {
	server *fuse.Server

	mu     sync.Mutex // guards the fields below
	errnos map[Op]syscall.Errno
	failed map[Op]int
	synced map[string]bool // paths of synced directories, relative to the root
	hang   *hang           // nil if no operations have to hang
}

// hang describes operations that wait until released is closed.
type hang struct {
	suffix   string // the operations on files whose names end so wait
	ops      []Op
	waiting  map[Op]int
	released chan struct{}
}

// Mount mounts an FS on dir. Its files are in the directory backing.
func Mount(backing, dir string) (*FS, error) {
	f := &FS{errnos: map[Op]syscall.Errno{}, failed: map[Op]int{}, synced: map[string]bool{}}
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

// Fail makes operations fail with errno from now on. With errno 0 they succeed again.
func (f *FS) Fail(errno syscall.Errno, ops ...Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		f.errnos[op] = errno
	}
}

// Failed returns the number of operations that Fail has made fail.
func (f *FS) Failed(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed[op]
}

// SyncedDirs returns the sorted paths of the directories that were synced, relative to the root.
func (f *FS) SyncedDirs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.synced))
}

// Hang makes operations on files whose names end with suffix wait until Release or Close, for two
// minutes at most. It first releases the operations of an earlier Hang.
func (f *FS) Hang(suffix string, ops ...Op) {
	f.Release()
	h := &hang{suffix: suffix, ops: ops, waiting: map[Op]int{}, released: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = h
	time.AfterFunc(hangLimit, func() { f.release(h) })
}

// Release continues all hanging operations.
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

// Hanging returns the number of operations that wait.
func (f *FS) Hanging(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hang == nil {
		return 0
	}
	return f.hang.waiting[op]
}

// await blocks while an operation on the named file has to hang.
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

// Close unmounts the file system from dir, also while it is in use. It releases hanging operations,
// and later operations fail at once. Otherwise a process that waits for its own file system would
// never end.
func (f *FS) Close(dir string) error {
	f.Release()
	err := syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
	if errors.Is(err, syscall.EINVAL) { // it is not mounted any more
		return nil
	}
	return err
}

// before lets an operation hang or fail before it is forwarded.
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
	_ fs.NodeReader         = (*node)(nil)
	_ fs.NodeWriter         = (*node)(nil)
	_ fs.NodeOpener         = (*node)(nil)
	_ fs.NodeOpendirHandler = (*node)(nil)
	_ fs.NodeCreater        = (*node)(nil)
	_ fs.NodeUnlinker       = (*node)(nil)
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

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode,
	fs.FileHandle, uint32, syscall.Errno) {
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

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, flags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &openDir{h.(dirHandle), n}, flags, 0
}

// openDir is an open directory.
type openDir struct {
	dirHandle
	node *node
}

type dirHandle interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
	fs.FileFsyncdirer
}

// Fsyncdir implements fs.FileFsyncdirer.
func (d *openDir) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	path := d.node.Path(nil)
	if errno := d.node.fs.before(SyncDir, path); errno != 0 {
		return errno
	}
	errno := d.dirHandle.Fsyncdir(ctx, flags)
	if errno == 0 {
		d.node.fs.mu.Lock()
		defer d.node.fs.mu.Unlock()
		d.node.fs.synced[path] = true
	}
	return errno
}
