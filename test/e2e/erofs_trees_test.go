//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// erofsCase is a tree, with the contents of its files on the device.
type erofsCase struct {
	root *tree.Node
	data map[*tree.Node]map[int64]string // bytes of each file, by their offset in it; zeros elsewhere
}

// file returns a file that is inline, or on the device if content is too long for that.
func (c *erofsCase) file(content string) *tree.Node {
	n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(content)),
		Mtime: tree.Time{Sec: 1700000000, Nsec: 987654321}}
	if len(content) <= tree.InlineLimit {
		n.Content.Inline = []byte(content)
		return n
	}
	return c.sparse(n.Size, map[int64]string{0: content})
}

// sparse returns a file on the device that has data, by offset, and zeros elsewhere.
func (c *erofsCase) sparse(size int64, data map[int64]string) *tree.Node {
	n := &tree.Node{Mode: tree.ModeRegular | 0o600, Nlink: 1, Size: size}
	n.Content.Extents = []tree.Extent{{ID: chunk.Sum(nil), Length: size}}
	if c.data == nil {
		c.data = map[*tree.Node]map[int64]string{}
	}
	c.data[n] = data
	return n
}

// erofsNode returns a symlink, a FIFO, a socket or a device.
func erofsNode(mode uint32, rdev uint64, link string) *tree.Node {
	return &tree.Node{Mode: mode, Nlink: 1, Rdev: rdev, Link: link, Size: int64(len(link)), Mtime: tree.Time{Sec: 1}}
}

// erofsXattrs gives a node extended attributes: each name in pairs is followed by its value.
func erofsXattrs(n *tree.Node, pairs ...string) *tree.Node {
	for i := 0; i < len(pairs); i += 2 {
		n.Xattrs = append(n.Xattrs, tree.Xattr{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	slices.SortFunc(n.Xattrs, func(a, b tree.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return n
}

// erofsDir returns a directory: each name in children is followed by its node.
func erofsDir(children ...any) *tree.Node {
	var dirents []tree.Dirent
	for i := 0; i < len(children); i += 2 {
		dirents = append(dirents, tree.Dirent{Name: children[i].(string), Node: children[i+1].(*tree.Node)})
	}
	return tree.NewDir(tree.Node{Mode: 0o755, Mtime: tree.Time{Sec: 1600000000, Nsec: 1}}, dirents)
}

// erofsACL is an ACL: user::rwx, user:1000:r-x, group::r-x, mask::r-x, other::r--. The kernel
// parses ACLs, so it has to be valid.
const erofsACL = "\x02\x00\x00\x00" +
	"\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x05\x00\xe8\x03\x00\x00" + "\x04\x00\x05\x00\xff\xff\xff\xff" +
	"\x10\x00\x05\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"

// erofsOdd has nodes of all types, with names, sizes, owners, times, device numbers and extended
// attributes at or near their limits.
func erofsOdd() *erofsCase {
	c := &erofsCase{}
	shared := c.file("three names")
	shared.Nlink = 3
	onDevice := c.file(strings.Repeat("two names on the device\n", 1000))
	onDevice.Nlink = 2
	value := strings.Repeat("v", 65535)
	owned := c.file("#!/bin/sh\n")
	owned.Mode, owned.UID, owned.GID = tree.ModeRegular|0o6755, 1<<32-2, 70000
	owned.Mtime = tree.Time{Sec: 1 << 33, Nsec: 999999999}
	c.root = erofsDir(
		"\x01", c.file("before the dots"), "-dash", shared, ".\x01", c.file("between the dots"), "...", erofsDir(),
		strings.Repeat("\xff", 255), c.file("long and not UTF-8"), strings.Repeat("\xfe", 255), erofsDir("f", shared),
		"empty", c.file(""), "one", c.file("1"), "limit", c.file(strings.Repeat("l", tree.InlineLimit)),
		"beyond", c.file(strings.Repeat("b", tree.InlineLimit+1)), "again", onDevice,
		"page", c.file(strings.Repeat("p", 4096)), "page+1", c.file(strings.Repeat("q", 4097)), "big",
		c.file(strings.Repeat("0123456", 1<<20)),
		"hole", c.sparse(100<<20, nil), "owned", owned,
		"link", erofsNode(tree.ModeSymlink|0o777, 0, "dir/\xff"), "long link",
		erofsNode(tree.ModeSymlink|0o777, 0, strings.Repeat("t", 4095)),
		"link 4032", erofsNode(tree.ModeSymlink|0o777, 0, strings.Repeat("u", 4032)), "link 4033",
		erofsNode(tree.ModeSymlink|0o777, 0, strings.Repeat("w", 4033)),
		"fifo", erofsNode(tree.ModeFIFO|0o600, 0, ""), "socket", erofsNode(tree.ModeSocket|0o600, 0, ""),
		"null", erofsNode(tree.ModeChar|0o666, unix.Mkdev(1, 3), ""), "nvme",
		erofsNode(tree.ModeBlock|0o660, unix.Mkdev(259, 70000), ""),
		"largest", erofsNode(tree.ModeChar|0o666, unix.Mkdev(4095, 1<<20-1), ""),
		"xattrs", erofsDir(
			"capability", erofsXattrs(c.file("ping"), "security.capability",
				"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
			"acl", erofsXattrs(c.file(strings.Repeat("a", 5000)), "system.posix_acl_access", erofsACL),
			"default", erofsXattrs(erofsDir("f", c.file("f")), "system.posix_acl_access", erofsACL,
				"system.posix_acl_default", erofsACL),
			"large", erofsXattrs(c.file("x"), "user.a", value, "user.b", value, "user.c", value, "user.empty", "",
				"user."+strings.Repeat("n", 250), "long"),
			"large dir", erofsXattrs(erofsDir("f", onDevice, "g", shared), "trusted.dir", value, "user.bytes",
				"\x00\xff"),
			"large file", erofsXattrs(c.file(strings.Repeat("y", 9000)), "user.v", value),
			"link", erofsXattrs(erofsNode(tree.ModeSymlink|0o777, 0, "target"), "trusted.link", "yes", "security.x",
				strings.Repeat("z", 5000)),
			"device", erofsXattrs(erofsNode(tree.ModeChar, unix.Mkdev(0, 0), ""), "trusted.device", "yes"),
		),
	)
	return c
}

// erofsGiant has files of 5 GiB and 1 TiB, whose sizes and offsets need more than 32 bits.
func erofsGiant() *erofsCase {
	c := &erofsCase{}
	c.root = erofsDir(
		"5G", c.sparse(5<<30+1, map[int64]string{0: "start", 4<<30 - 3: "across 4 GiB", 5 << 30: "e"}),
		"1T", c.sparse(1<<40+4095, map[int64]string{0: "start", 1 << 39: "middle", 1<<40 + 4090: "e end"}),
		"last", c.file(strings.Repeat("beyond a terabyte ", 1000)),
	)
	return c
}

// erofsWide has directories of up to 50,000 names. At about 150 names, a directory needs a second
// block.
func erofsWide() *erofsCase {
	c := &erofsCase{}
	var dirs []any
	for _, n := range []int{0, 1, 100, 144, 145, 146, 147, 148, 149, 150, 151, 152, 300, 1000, 50_000} {
		var children []any
		for i := range n {
			children = append(children, fmt.Sprintf("entry %d of %d", i, n), c.file(fmt.Sprint(i)))
		}
		dirs = append(dirs, fmt.Sprintf("%d names", n), erofsDir(children...))
	}
	c.root = erofsDir(dirs...)
	return c
}

// erofsDeep has 15 levels of directories with long names.
func erofsDeep() *erofsCase {
	c := &erofsCase{}
	c.root = erofsDir()
	for i := range 15 {
		c.root = erofsDir(strings.Repeat("d", 254), c.root, "f", c.file(strings.Repeat("f", 1000*i)))
	}
	return c
}

// each calls visit for each path of the tree. The root's path is ".".
func (c *erofsCase) each(visit func(path string, n *tree.Node)) {
	var walk func(path string, n *tree.Node)
	walk = func(path string, n *tree.Node) {
		visit(path, n)
		for _, child := range n.Children() {
			walk(filepath.Join(path, child.Name), child.Node)
		}
	}
	walk(".", c.root)
}
