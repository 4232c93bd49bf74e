package directory

import (
	"context"
	"path"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// imageNode is an image's own directory, which its tree is mounted over. A request inside of it
// comes from a process that does not see the tree, or not yet.
type imageNode struct {
	fs.Inode
	dir *Directory
	key key
}

// fileNode is a file of an image's tree, for processes that do not see the mounted tree.
type fileNode struct {
	fs.Inode
	image *imageNode
	path  string // in the tree
}

var (
	_ interface {
		fs.NodeLookuper
		fs.NodeOpendirer
		fs.NodeReaddirer
		fs.NodeGetattrer
		fs.NodeAccesser
	} = (*imageNode)(nil)
	_ interface {
		fs.NodeLookuper
		fs.NodeOpendirer
		fs.NodeReaddirer
		fs.NodeGetattrer
		fs.NodeAccesser
		fs.NodeReadlinker
		fs.NodeOpener
	} = (*fileNode)(nil)
)

// Getattr implements fs.NodeGetattrer. It mounts nothing.
func (n *imageNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(nameTTL)
	n.dir.setAttr(&out.Attr)
	return fs.OK
}

// Access implements fs.NodeAccesser: a process enters the directory.
func (n *imageNode) Access(ctx context.Context, mask uint32) syscall.Errno {
	return n.with(ctx, false, "", func(file string) syscall.Errno { return checkAccess(ctx, file, mask) })
}

// Opendir implements fs.NodeOpendirer.
func (n *imageNode) Opendir(ctx context.Context) syscall.Errno {
	return n.Access(ctx, mayRead)
}

// Readdir implements fs.NodeReaddirer.
func (n *imageNode) Readdir(ctx context.Context) (fs.DirStream, syscall.Errno) {
	return n.readdir(ctx, "")
}

// Lookup implements fs.NodeLookuper.
func (n *imageNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.lookup(ctx, &n.Inode, name, name, out)
}

// with calls do with the path of a file of the tree, where the node has mounted the tree. It
// returns ESTALE if the kernel should walk to the tree instead. locked is as for lookInside.
func (n *imageNode) with(
	ctx context.Context, locked bool, file string, do func(path string) syscall.Errno,
) syscall.Errno {
	i, errno := n.dir.lookInside(ctx, n.key, locked)
	if errno != 0 {
		return errno
	}
	i.work.RLock()
	defer i.work.RUnlock()
	n.dir.mu.Lock()
	tree := i.tree
	n.dir.mu.Unlock()
	if tree == "" {
		return syscall.ESTALE // it was unmounted meanwhile
	}
	return do(filepath.Join(tree, file))
}

func (n *imageNode) readdir(ctx context.Context, dir string) (entries fs.DirStream, errno syscall.Errno) {
	errno = n.with(ctx, true, dir, func(file string) (errno syscall.Errno) {
		entries, errno = fs.NewLoopbackDirStream(file)
		return errno
	})
	return entries, errno
}

// lookup returns the node of a file whose parent has a node. file is the path in the tree.
func (n *imageNode) lookup(
	ctx context.Context, parent *fs.Inode, name, file string, out *fuse.EntryOut,
) (child *fs.Inode, errno syscall.Errno) {
	var stat syscall.Stat_t
	errno = n.with(ctx, true, file, func(file string) syscall.Errno {
		if errno := checkAccess(ctx, filepath.Dir(file), mayExecute); errno != 0 {
			return errno
		}
		return fs.ToErrno(syscall.Lstat(file, &stat))
	})
	if errno != 0 {
		return nil, errno
	}
	out.FromStat(&stat)
	out.SetEntryTimeout(nameTTL)
	out.SetAttrTimeout(nameTTL)
	if child = parent.GetChild(name); child != nil {
		return child, fs.OK
	}
	node := &fileNode{image: n, path: file}
	return parent.NewInode(ctx, node, fs.StableAttr{Mode: stat.Mode & syscall.S_IFMT}), fs.OK
}

// The bits of a file's mode for other users, and of the mask of access(2).
const mayExecute, mayWrite, mayRead = 1, 2, 4

// checkAccess returns an errno unless every user may access a file so, or the request is from root.
// The kernel does not check requests of this file system, and a request does not have all groups of
// its process.
func checkAccess(ctx context.Context, file string, mask uint32) syscall.Errno {
	if mask&mayWrite != 0 {
		return syscall.EROFS
	}
	var stat syscall.Stat_t
	if err := syscall.Lstat(file, &stat); err != nil {
		return fs.ToErrno(err)
	}
	caller, ok := fuse.FromContext(ctx)
	if ok && (caller.Uid == 0 || stat.Mode&mask == mask) {
		return fs.OK
	}
	return syscall.EACCES
}

// Getattr implements fs.NodeGetattrer.
func (n *fileNode) Getattr(ctx context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.image.with(ctx, true, n.path, func(file string) syscall.Errno {
		var stat syscall.Stat_t
		err := syscall.Lstat(file, &stat)
		out.FromStat(&stat)
		out.SetTimeout(nameTTL)
		return fs.ToErrno(err)
	})
}

// Access implements fs.NodeAccesser.
func (n *fileNode) Access(ctx context.Context, mask uint32) syscall.Errno {
	return n.image.with(ctx, true, n.path, func(file string) syscall.Errno { return checkAccess(ctx, file, mask) })
}

// Opendir implements fs.NodeOpendirer.
func (n *fileNode) Opendir(ctx context.Context) syscall.Errno { return n.Access(ctx, mayRead) }

// Readdir implements fs.NodeReaddirer.
func (n *fileNode) Readdir(ctx context.Context) (fs.DirStream, syscall.Errno) {
	return n.image.readdir(ctx, n.path)
}

// Lookup implements fs.NodeLookuper.
func (n *fileNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.image.lookup(ctx, &n.Inode, name, path.Join(n.path, name), out)
}

// Readlink implements fs.NodeReadlinker.
func (n *fileNode) Readlink(ctx context.Context) (target []byte, errno syscall.Errno) {
	errno = n.image.with(ctx, true, n.path, func(file string) syscall.Errno {
		target = make([]byte, syscall.PathMax)
		size, err := syscall.Readlink(file, target)
		target = target[:max(0, size)]
		return fs.ToErrno(err)
	})
	return target, errno
}

// Open implements fs.NodeOpener. The kernel opens only regular files here.
func (n *fileNode) Open(ctx context.Context, flags uint32) (file fs.FileHandle, open uint32, errno syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	errno = n.image.with(ctx, true, n.path, func(path string) syscall.Errno {
		if errno := checkAccess(ctx, path, mayRead); errno != 0 {
			return errno
		}
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err == nil {
			file = fs.NewLoopbackFile(fd)
		}
		return fs.ToErrno(err)
	})
	return file, fuse.FOPEN_KEEP_CACHE, errno
}
