// Package faultfs promises a directory whose disk fails when a test says so, and
// as it says: a FUSE file system that hands everything on to another directory, but
// for the operations that are to fail. It is for faults that no real file system here
// can be made to have at a chosen moment.
//
// It needs root. The kernel caches no data of it, so each read and write of a
// process is one here.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Op is a kind of operation that can fail.
type Op string

// What can fail.
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

// Close unmounts it, also from under those who use it.
func (f *FS) Close(dir string) error {
	err := syscall.Unmount(dir, syscall.MNT_DETACH)
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

func (f *FS) errno(op Op) syscall.Errno {
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
	if errno := n.fs.errno(Read); errno != 0 {
		return nil, errno
	}
	return h.(fs.FileReader).Read(ctx, dest, off)
}

func (n *node) Write(ctx context.Context, h fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := n.fs.errno(Write); errno != 0 {
		return 0, errno
	}
	return h.(fs.FileWriter).Write(ctx, data, off)
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.errno(Open); errno != 0 {
		return nil, 0, errno
	}
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	return h, fuse.FOPEN_DIRECT_IO, errno
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.errno(Open); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, h, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, h, fuse.FOPEN_DIRECT_IO, errno
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.fs.errno(Unlink); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}
