package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"lighter/node/killed"
	"lighter/node/mount"
)

// Links says which links and files a directory has.
type Links interface {
	HasChain(chain string) bool
	HasFile(name string) bool
	// Open opens a file for a user. It waits for nothing. If the error is a syscall.Errno, programs
	// get it.
	Open(name string, user uint32) (Stream, error)
}

// A directory with links has these names:
//
//	HEX         a symbolic link to the tree of chain sha256:HEX
//	OWNERS/HEX  the tree
//	FILE        a file (Links.HasFile)
//
// To read the link mounts the tree. The answer depends on the reader: the owners of the tree's
// files are mapped into the reader's user namespace. OWNERS stands for its mapping and its user.

// plain is the OWNERS of readers in the node's own user namespace: the files have their owners.
const plain = "plain"

// Link returns the name of a chain's link. A chain that has no such name has no link.
func Link(chain string) string { return strings.TrimPrefix(chain, "sha256:") }

var errUnmapped = errors.New("no process reads the image's link, so the owners of its files are not known")

// isMapped reports whether the owners of an image's files are mapped into a user namespace.
func isMapped(k key) bool {
	owners, _, link := strings.Cut(k.name, "/")
	return link && strings.HasPrefix(owners, mappedPrefix)
}

const mappedPrefix = "mapped-"

// owners returns the OWNERS of a thread: "plain", or a name for the user and the mapping of its
// user namespace.
func owners(thread uint32) (string, error) {
	own, err := mapping(uint32(os.Getpid()))
	if err != nil {
		return "", err
	}
	its, err := mapping(thread)
	if err != nil || its == own {
		return plain, err
	}
	user, err := namespaceUser(thread)
	sum := sha256.Sum256([]byte(its))
	return fmt.Sprintf("%s%d-%s", mappedPrefix, user, hex.EncodeToString(sum[:8])), err
}

// mapping returns the text of a thread's mapping of users and groups.
func mapping(thread uint32) (string, error) {
	users, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", thread))
	if err != nil {
		return "", err
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/gid_map", thread))
	return string(users) + "/" + string(groups), err
}

// bind mounts a tree over an image's name.
func (d *Directory) bind(k key, tree string) error {
	if !isMapped(k) {
		return mount.Bind(tree, d.path(k))
	}
	d.mu.Lock()
	caller := d.pending[k].thread
	d.mu.Unlock()
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", caller))
	if err != nil {
		return fmt.Errorf("open the user namespace of a process: %w", err)
	}
	defer space.Close()
	// The thread may have ended meanwhile, and another one may have its number.
	if now, err := owners(caller); err != nil || now != path.Dir(k.name) {
		return errors.Join(errors.New("the process that reads the image's link has ended"), err)
	}
	return mount.BindMapped(tree, d.path(k), space)
}

// unlisted is a directory that looks empty: its names can only be looked up.
type unlisted struct {
	fs.Inode
	dir *Directory
}

// linksNode is the root of a directory with links.
type linksNode struct{ unlisted }

// ownersNode is the directory OWNERS.
type ownersNode struct {
	unlisted
	name string
}

// linkNode is a link.
type linkNode struct {
	fs.Inode
	dir   *Directory
	chain string
}

var (
	_ interface {
		fs.NodeLookuper
		fs.NodeGetattrer
		fs.NodeReaddirer
	} = (*linksNode)(nil)
	_ interface {
		fs.NodeLookuper
		fs.NodeGetattrer
		fs.NodeReaddirer
	} = (*ownersNode)(nil)
	_ interface {
		fs.NodeReadlinker
		fs.NodeGetattrer
	} = (*linkNode)(nil)
)

// Getattr implements fs.NodeGetattrer.
func (n *unlisted) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(nameTTL)
	n.dir.setAttr(&out.Attr)
	return fs.OK
}

// Readdir implements fs.NodeReaddirer.
func (n *unlisted) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	return fs.NewListDirStream(nil), fs.OK
}

// Lookup implements fs.NodeLookuper.
func (n *linksNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if name == plain || strings.HasPrefix(name, mappedPrefix) {
		if !n.dir.hasOwners(name) {
			return nil, syscall.ENOENT
		}
		n.dir.fill(out)
		if child := n.GetChild(name); child != nil {
			return child, fs.OK
		}
		return n.NewInode(ctx, &ownersNode{unlisted{dir: n.dir}, name}, fs.StableAttr{Mode: fuse.S_IFDIR}), fs.OK
	}
	if n.dir.config.Links.HasFile(name) {
		n.dir.fill(out)
		out.Mode = fuse.S_IFREG | 0o444
		return n.NewInode(ctx, &streamNode{dir: n.dir, name: name}, fs.StableAttr{Mode: fuse.S_IFREG}), fs.OK
	}
	chain := "sha256:" + name
	if !n.dir.config.Links.HasChain(chain) {
		return nil, syscall.ENOENT
	}
	n.dir.fill(out)
	out.Mode = fuse.S_IFLNK | 0o777
	if child := n.GetChild(name); child != nil {
		return child, fs.OK
	}
	return n.NewInode(ctx, &linkNode{dir: n.dir, chain: chain}, fs.StableAttr{Mode: fuse.S_IFLNK}), fs.OK
}

// hasOwners reports whether an image is mounted, or is being mounted, below OWNERS.
func (d *Directory) hasOwners(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.images {
		if path.Dir(k.name) == name {
			return true
		}
	}
	return false
}

// Getattr implements fs.NodeGetattrer.
func (n *linkNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.SetTimeout(nameTTL)
	n.dir.setAttr(&out.Attr)
	out.Mode = fuse.S_IFLNK | 0o777
	return fs.OK
}

// Readlink implements fs.NodeReadlinker. It returns the path of the tree once the tree is mounted.
// The kernel asks each time that it follows the link.
func (n *linkNode) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	ctx, cancel := killed.Context(ctx)
	defer cancel()
	by := requesterOf(ctx)
	by.link = true
	thread := by.thread
	if thread == 0 {
		thread = uint32(os.Getpid()) // the owners stay as they are
	}
	who, err := owners(thread)
	if err != nil {
		return nil, syscall.EIO
	}
	k := key{path.Join(who, Link(n.chain)), target{chain: n.chain}}
	_, p, failed := n.dir.begin(k, by)
	switch {
	case failed != nil:
		return nil, syscall.EIO // the log has the cause
	case p != nil:
		if err := p.call.Wait(ctx); err != nil {
			return nil, errnoOf(ctx)
		}
	}
	return []byte(n.dir.path(k)), fs.OK
}

// Lookup implements fs.NodeLookuper.
func (n *ownersNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	k := key{path.Join(n.name, name), target{chain: "sha256:" + name}}
	n.dir.mu.Lock()
	known := n.dir.images[k] != nil
	n.dir.mu.Unlock()
	if !known {
		return nil, syscall.ENOENT
	}
	n.dir.fill(out)
	if child := n.GetChild(name); child != nil {
		return child, fs.OK
	}
	return n.NewInode(ctx, &imageNode{dir: n.dir, key: k}, fs.StableAttr{Mode: fuse.S_IFDIR}), fs.OK
}
