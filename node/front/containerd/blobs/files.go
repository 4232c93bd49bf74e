package blobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"lighter/format/chunk"
	"lighter/node/killed"
	"lighter/node/mount"
)

// serve serves the file system on a connection until it is unmounted. Its goroutines end with the
// connection, or with the process.
func (b *Blobs) serve(fd int) error {
	options := &fs.Options{NullPermissions: true, MountOptions: fuse.MountOptions{
		DisableReadDirPlus: true, MaxWrite: mount.ServedRead, IgnoreSecurityLabels: true,
	}}
	// go-fuse takes this path for a connection that is mounted already.
	server, err := fuse.NewServer(fs.NewNodeFS(&rootNode{blobs: b}, options), fmt.Sprintf("/dev/fd/%d", fd),
		&options.MountOptions)
	if err != nil {
		return fmt.Errorf("serve the layers of lazy images: %w", err)
	}
	go server.Serve()
	return nil
}

// rootNode is the directory. It has a file of every name that parseName accepts, and lists none.
type rootNode struct {
	fs.Inode
	blobs *Blobs
}

// fileNode is a layer.
type fileNode struct {
	fs.Inode
	blobs *Blobs
	name  name
}

var (
	_ fs.NodeLookuper = (*rootNode)(nil)
	_ interface {
		fs.NodeGetattrer
		fs.NodeOpener
	} = (*fileNode)(nil)
)

// Lookup implements fs.NodeLookuper. It waits for nothing: containerd looks up layers while it has
// its database locked. The kernel keeps no answer: after the daemon was killed, containerd must not
// find layers that nobody can read.
func (r *rootNode) Lookup(ctx context.Context, text string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n, ok := parseName(text)
	if !ok {
		return nil, syscall.ENOENT
	}
	r.blobs.setAttr(n, &out.Attr)
	if child := r.GetChild(text); child != nil {
		return child, fs.OK
	}
	return r.NewInode(ctx, &fileNode{blobs: r.blobs, name: n}, fs.StableAttr{Mode: syscall.S_IFREG}), fs.OK
}

// Getattr implements fs.NodeGetattrer.
func (f *fileNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.blobs.setAttr(f.name, &out.Attr)
	return fs.OK
}

// setAttr sets the attributes of a layer. Its size must be right before it is fetched.
func (b *Blobs) setAttr(n name, out *fuse.Attr) {
	out.Mode, out.Nlink = syscall.S_IFREG|0o444, 1
	out.Size = uint64(n.size)
	out.SetTimes(&b.started, &b.started, &b.started)
}

// Open implements fs.NodeOpener. It waits until the layer is fetched. The answer is then ESTALE:
// the kernel walks the path once more, and finds the file itself, so its readers do not depend on
// this process. A request that finds the layer fetched has not come over a link, or has lost a
// race. It gets the file.
func (f *fileNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	if fd, ok := f.blobs.openFetched(f.name); ok {
		return fs.NewLoopbackFile(fd), fuse.FOPEN_KEEP_CACHE, fs.OK
	}
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	err := f.blobs.ensure(ctx, f.name)
	if err == nil {
		return nil, 0, syscall.ESTALE
	}
	return nil, 0, errnoOf(ctx, err)
}

// openFetched opens the file of a layer that was fetched.
func (b *Blobs) openFetched(n name) (fd int, ok bool) {
	in, err := b.where()
	if err != nil {
		return 0, false
	}
	fd, err = syscall.Open(in.path(n.layer), syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	return fd, err == nil
}

// errnoOf returns the errno of a failed fetch.
func errnoOf(ctx context.Context, err error) syscall.Errno {
	switch {
	case ctx.Err() != nil:
		return syscall.EINTR // the process is killed
	case errors.Is(err, os.ErrNotExist), errors.Is(err, chunk.ErrNotFound):
		return syscall.ENOENT
	case errors.Is(err, syscall.ENOSPC):
		return syscall.ENOSPC
	case errors.Is(err, syscall.EDQUOT):
		return syscall.EDQUOT
	}
	return syscall.EIO
}
