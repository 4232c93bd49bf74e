package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// DefaultACL is the extended attribute with the ACL that a directory hands down to what is made in
// it.
const DefaultACL = "system.posix_acl_default"

const (
	capability = "security.capability"
	accessACL  = "system.posix_acl_access"

	setGID = 0o2000

	maxXattrName  = 255       // bytes of a name, in the kernel
	maxXattrValue = 1 << 16   // bytes of a value, in the kernel
	maxKeptValue  = 1<<16 - 1 // bytes of a value, in EROFS

	xattrMemory   = 64               // bytes of an attribute in memory, without its name and value
	maxXattrs     = 1024             // attributes of an inode
	maxXattrsSize = 12 + 4*(1<<16-2) // bytes of an inode's attributes, in EROFS
)

// setAttributes sets the attributes of an entry in containerd's order: owner, extended attributes,
// mode, time. Each step may change what an earlier step has set.
func (n *Node) setAttributes(e *Entry) error {
	n.chown(uint32(e.UID), uint32(e.GID))
	for _, x := range e.Xattrs {
		if err := n.setXattr(x.Name, x.Value); err != nil {
			return fmt.Errorf("set attribute %q: %w", x.Name, err)
		}
	}
	if n.Mode&ModeType != ModeSymlink {
		n.chmod(uint32(e.Mode))
	}
	n.Mtime = e.Mtime
	return nil
}

// inherit sets what a new inode inherits from its directory: the group if the directory has the
// set-GID bit, and the default ACL.
func (n *Node) inherit(dir *Node) {
	if dir.Mode&setGID != 0 {
		n.GID = dir.GID
	}
	value := dir.xattr(DefaultACL)
	if value == nil || n.Mode&ModeType == ModeSymlink {
		return
	}
	// The caller calls chmod afterwards, which sets the permissions in the access ACL.
	if a, _ := parseACL(value); a.mask() != nil {
		n.storeXattr(accessACL, value)
	}
	if n.IsDir() {
		n.storeXattr(DefaultACL, value)
	}
}

// chown sets the user and the group. An ID of all ones (-1) means "unchanged". As in the kernel,
// any chown removes a file's capabilities.
func (n *Node) chown(uid, gid uint32) {
	if uid != math.MaxUint32 {
		n.UID = uid
	}
	if gid != math.MaxUint32 {
		n.GID = gid
	}
	if !n.IsDir() && len(n.xattr(capability)) > 0 {
		n.removeXattr(capability)
	}
}

// chmod sets the low 12 bits of the mode, and the same permissions in an ACL.
func (n *Node) chmod(mode uint32) {
	n.Mode = n.Mode&ModeType | mode&maxMode
	if value := n.xattr(accessACL); value != nil {
		a, _ := parseACL(value)
		a.chmod(mode)
		n.storeXattr(accessACL, a.encode())
	}
}

// setXattr sets an extended attribute as containerd and the kernel do: some attributes are refused,
// some are dropped silently, and some are changed.
func (n *Node) setXattr(name string, value []byte) error {
	kind := n.Mode & ModeType
	switch {
	case strings.HasPrefix(name, "trusted."):
		return nil
	case name == "" || len(name) > maxXattrName:
		return fmt.Errorf("name of %d bytes", len(name))
	case len(value) > maxXattrValue:
		return fmt.Errorf("value of %d bytes", len(value))
	case name == accessACL || name == DefaultACL:
		return n.setACL(name, value)
	case strings.HasPrefix(name, "user."):
		if kind != ModeRegular && kind != ModeDir {
			return nil
		}
	case !strings.HasPrefix(name, "security."):
		return nil
	}
	if name == "user." || name == "security." {
		return errInvalid
	}
	if name == capability && len(value) > 0 {
		var err error
		if value, err = canonicalCapability(value); err != nil {
			return err
		}
	}
	if len(value) > maxKeptValue {
		return fmt.Errorf("value of %d bytes, the limit of EROFS is %d", len(value), maxKeptValue)
	}
	n.storeXattr(name, value)
	return nil
}

func (n *Node) findXattr(name string) (int, bool) {
	return slices.BinarySearchFunc(n.Xattrs, name, func(x Xattr, name string) int {
		return strings.Compare(x.Name, name)
	})
}

// xattr returns a value, or nil if there is no such attribute.
func (n *Node) xattr(name string) []byte {
	i, found := n.findXattr(name)
	if !found {
		return nil
	}
	return n.Xattrs[i].Value
}

func (n *Node) storeXattr(name string, value []byte) {
	i, found := n.findXattr(name)
	if !found {
		n.Xattrs = slices.Insert(n.Xattrs, i, Xattr{Name: name})
	}
	n.Xattrs[i].Value = value
}

// keepXattrs counts an inode's attributes, in bytes, and checks their limits. It is called whenever
// attributes were stored: an entry has at most 1 MB of them, but each hard link of a file is
// another entry, which may add attributes.
func (b *budget) keepXattrs(n *Node) error {
	if len(n.Xattrs) > maxXattrs {
		return fmt.Errorf("%d extended attributes, the limit is %d", len(n.Xattrs), maxXattrs)
	}
	if size := n.xattrsSize(); size > maxXattrsSize {
		return fmt.Errorf("extended attributes of %d bytes, the limit of EROFS is %d", size, maxXattrsSize)
	}
	for _, x := range n.Xattrs {
		if err := b.keep(int64(xattrMemory + len(x.Name) + len(x.Value))); err != nil {
			return err
		}
	}
	return nil
}

// xattrsSize returns the size of an inode's attributes in EROFS, in bytes.
func (n *Node) xattrsSize() int {
	size := 12
	for _, x := range n.Xattrs {
		size += 4 + len(x.Value)
		if x.Name != accessACL && x.Name != DefaultACL { // their names take no space
			_, rest, _ := strings.Cut(x.Name, ".")
			size += len(rest)
		}
		size = (size + 3) &^ 3
	}
	return size
}

func (n *Node) removeXattr(name string) {
	if i, found := n.findXattr(name); found {
		n.Xattrs = slices.Delete(n.Xattrs, i, i+1)
	}
}

// The kernel's struct vfs_cap_data (include/uapi/linux/capability.h): 32 bits of version and flags,
// four times 32 bits of capabilities, and in version 3 the user ID of the namespace's root.
const (
	capV2, capV2Size = 0x02000000, 20
	capV3, capV3Size = 0x03000000, 24
	capEffective     = 1
)

// canonicalCapability checks file capabilities and returns them as the kernel returns them: version
// 3 with the machine's own root becomes version 2.
func canonicalCapability(value []byte) ([]byte, error) {
	if len(value) < 4 {
		return nil, errInvalid
	}
	word := binary.LittleEndian.Uint32(value)
	switch version := word &^ capEffective; {
	case version == capV2 && len(value) == capV2Size:
		return value, nil
	case version == capV3 && len(value) == capV3Size:
		root := binary.LittleEndian.Uint32(value[capV2Size:])
		if root == math.MaxUint32 {
			return nil, errInvalid
		}
		if root != 0 {
			return value, nil
		}
		v2 := binary.LittleEndian.AppendUint32(nil, capV2|word&capEffective)
		return append(v2, value[4:capV2Size]...), nil
	}
	return nil, errors.New("capabilities of an unknown version")
}
