package directory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"lighter/node/killed"
	"lighter/node/mount"
)

// serve serves the file system of names on a connection until it is unmounted. Its goroutines end
// with the connection, or with the process.
func (d *Directory) serve(fd int) error {
	missing := missingTTL
	options := &fs.Options{NegativeTimeout: &missing, NullPermissions: true, MountOptions: fuse.MountOptions{
		// Without READDIRPLUS, a listing makes no nodes.
		DisableReadDirPlus: true, MaxWrite: mount.ServedRead, IgnoreSecurityLabels: true,
	}}
	// go-fuse takes this path for a connection that is mounted already.
	server, err := fuse.NewServer(fs.NewNodeFS(d.root(), options), fmt.Sprintf("/dev/fd/%d", fd),
		&options.MountOptions)
	if err != nil {
		return fmt.Errorf("serve the directory of images: %w", err)
	}
	go server.Serve()
	return nil
}

// root returns the root of the file system.
func (d *Directory) root() fs.InodeEmbedder {
	if d.config.Links != nil {
		return &linksNode{unlisted{dir: d}}
	}
	return &folderNode{dir: d}
}

// folderNode is a directory of names: the root, a host, or a part of a repository's path.
type folderNode struct {
	fs.Inode
	dir  *Directory
	path string // below the root; empty: the root
}

var _ interface {
	fs.NodeLookuper
	fs.NodeReaddirer
	fs.NodeGetattrer
} = (*folderNode)(nil)

// Getattr implements fs.NodeGetattrer.
func (n *folderNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(nameTTL)
	n.dir.setAttr(&out.Attr)
	if n.path == "" && n.dir.config.Group != 0 {
		out.Mode, out.Gid = fuse.S_IFDIR|0o750, uint32(n.dir.config.Group)
	}
	return fs.OK
}

// setAttr sets the attributes of a name.
func (d *Directory) setAttr(out *fuse.Attr) {
	out.Mode, out.Nlink = fuse.S_IFDIR|0o755, 1 // one link: the number of directories is not known
	out.SetTimes(&d.started, &d.started, &d.started)
}

// Readdir implements fs.NodeReaddirer.
func (n *folderNode) Readdir(ctx context.Context) (fs.DirStream, syscall.Errno) {
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	n.dir.names.refresh(ctx, listTTL)
	unique := map[string]uint32{}
	if n.path == "" {
		for name := range n.dir.config.Hosts {
			unique[name] = fuse.S_IFLNK
		}
	}
	if all := n.dir.names.folder(n.path); all != nil {
		for name := range all.images {
			unique[name] = fuse.S_IFDIR
		}
		for name := range all.folders {
			unique[name] = fuse.S_IFDIR
		}
	}
	entries := make([]fuse.DirEntry, 0, len(unique))
	for _, name := range slices.Sorted(maps.Keys(unique)) {
		entries = append(entries, fuse.DirEntry{Name: name, Mode: unique[name]})
	}
	return fs.NewListDirStream(entries), fs.OK
}

// Lookup implements fs.NodeLookuper. A name that is both an image's and a folder's is the folder's.
// A host of the hub goes before a link.
func (n *folderNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	full := path.Join(n.path, name)
	if n.dir.names.folder(full) != nil {
		return n.folder(ctx, name, out), fs.OK
	}
	if target := n.dir.config.Hosts[name]; target != "" && n.path == "" {
		return n.link(ctx, name, target, out), fs.OK
	}
	if strings.ContainsAny(name, ":@") {
		if image, errno := n.lookupImage(ctx, name, out); errno != syscall.ENOENT {
			return image, errno
		}
	}
	if !mayBeFolder(n.path, name) {
		return nil, syscall.ENOENT
	}
	n.dir.names.refresh(ctx, missingTTL)
	if n.dir.names.folder(full) != nil {
		return n.folder(ctx, name, out), fs.OK
	}
	if _, _, away := n.dir.names.state(); away != nil {
		return nil, syscall.EIO // a hub may have it
	}
	return nil, syscall.ENOENT
}

// mayBeFolder reports whether a name in a folder can be that of a folder: part of a repository's
// name, or in the root a HOST:PORT.
func mayBeFolder(in, name string) bool {
	if in == "" {
		return isName(name + "/a:1")
	}
	return isName(in + "/" + name + ":1")
}

// folder returns the node of a folder.
func (n *folderNode) folder(ctx context.Context, name string, out *fuse.EntryOut) *fs.Inode {
	n.dir.fill(out)
	if child := n.GetChild(name); child != nil {
		if _, ok := child.Operations().(*folderNode); ok {
			return child
		}
	}
	node := &folderNode{dir: n.dir, path: path.Join(n.path, name)}
	return n.NewInode(ctx, node, fs.StableAttr{Mode: fuse.S_IFDIR})
}

// link returns the node of a symbolic link in the root.
func (n *folderNode) link(ctx context.Context, name, target string, out *fuse.EntryOut) *fs.Inode {
	n.dir.fill(out)
	out.Mode, out.Size = fuse.S_IFLNK|0o777, uint64(len(target))
	if child := n.GetChild(name); child != nil {
		if _, ok := child.Operations().(*fs.MemSymlink); ok {
			return child
		}
	}
	node := &fs.MemSymlink{Data: []byte(target)}
	node.Attr = out.Attr
	return n.NewInode(ctx, node, fs.StableAttr{Mode: fuse.S_IFLNK})
}

// fill sets what is the same in the answers about all names.
func (d *Directory) fill(out *fuse.EntryOut) {
	d.setAttr(&out.Attr)
	out.SetEntryTimeout(nameTTL)
	out.SetAttrTimeout(nameTTL)
}

// lookupImage returns the node of an image. If the name has another tree than at the last request,
// it is a new node. If an image is being mounted, lookupImage waits: the kernel may be walking the
// path once more.
func (n *folderNode) lookupImage(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	var before *imageNode
	child := n.GetChild(name)
	if child != nil {
		before, _ = child.Operations().(*imageNode)
	}
	if before != nil && isOwn(ctx) { // to mount or unmount the tree
		n.dir.fill(out)
		return child, fs.OK
	}
	full := path.Join(n.path, name)
	t, err := n.dir.names.resolve(ctx, full)
	switch {
	case err == nil:
	case before != nil && !errors.Is(err, errMissing):
		t = before.key.target // an error would make the kernel detach the tree
	case errors.Is(err, errMissing):
		if before != nil {
			n.dir.setMoved(before.key)
		}
		return nil, syscall.ENOENT
	default:
		return nil, errnoOf(ctx)
	}
	n.dir.fill(out)
	k := key{full, t}
	if before != nil && before.key == k {
		n.dir.awaitMount(ctx, k)
		return child, fs.OK
	}
	if before != nil {
		n.dir.setMoved(before.key)
	}
	node := &imageNode{dir: n.dir, key: k}
	return n.NewInode(ctx, node, fs.StableAttr{Mode: fuse.S_IFDIR}), fs.OK
}
