package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

const (
	capability = "security.capability"
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"

	setGID = 0o2000

	// maxXattrName and maxXattrValue are the kernel's bounds in bytes, and
	// maxKeptValue the longest value that EROFS can hold.
	maxXattrName  = 255
	maxXattrValue = 1 << 16
	maxKeptValue  = 1<<16 - 1

	// maxXattrs bounds the number of an inode's attributes, and maxXattrsSize
	// their bytes as EROFS lays them out, which it cannot have more of.
	maxXattrs     = 1024
	maxXattrsSize = 12 + 4*(1<<16-2)
)

// setAttributes gives n the attributes of an entry in containerd's order:
// owner, extended attributes, mode, time. Each may change what came before.
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

// inherit gives a new inode what the directory hands down in which it is made:
// its group if it is a set-GID directory, and its default ACL.
func (n *Node) inherit(dir *Node) {
	if dir.Mode&setGID != 0 {
		n.GID = dir.GID
	}
	value := dir.xattr(defaultACL)
	if value == nil || n.Mode&ModeType == ModeSymlink {
		return
	}
	// The caller's chmod makes the permissions in it what they have to be.
	if a, _ := parseACL(value); a.mask() != nil {
		n.storeXattr(accessACL, value)
	}
	if n.IsDir() {
		n.storeXattr(defaultACL, value)
	}
}

// chown sets the owner. All ones mean to leave it. The kernel takes a file's
// capabilities away, whoever the new owner is.
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

// chmod sets the low 12 bits of the mode, and the permissions that an ACL
// repeats.
func (n *Node) chmod(mode uint32) {
	n.Mode = n.Mode&ModeType | mode&maxMode
	if value := n.xattr(accessACL); value != nil {
		a, _ := parseACL(value)
		a.chmod(mode)
		n.storeXattr(accessACL, a.encode())
	}
}

// setXattr does what the kernel and containerd do together: some attributes
// are refused, some silently left out, and some come out changed.
func (n *Node) setXattr(name string, value []byte) error {
	kind := n.Mode & ModeType
	switch {
	case strings.HasPrefix(name, "trusted."):
		return nil
	case name == "" || len(name) > maxXattrName:
		return fmt.Errorf("a name of %d bytes", len(name))
	case len(value) > maxXattrValue:
		return fmt.Errorf("a value of %d bytes", len(value))
	case name == accessACL || name == defaultACL:
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
		return fmt.Errorf("a value of %d bytes, which EROFS cannot hold", len(value))
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

// keepXattrs counts by how much an inode's attributes have grown, and refuses
// more of them than an image can hold. Whoever has stored some calls it: an entry
// has a megabyte of them at most, but a file has as many entries as it has links.
func (b *budget) keepXattrs(n *Node, before int64) error {
	if len(n.Xattrs) > maxXattrs {
		return fmt.Errorf("%d extended attributes, of which a file can have %d", len(n.Xattrs), maxXattrs)
	}
	if size := n.xattrsSize(); size > maxXattrsSize {
		return fmt.Errorf("extended attributes of %d bytes, of which EROFS can hold %d", size, maxXattrsSize)
	}
	return b.keep(max(0, n.xattrsMemory()-before))
}

// xattrsMemory is about what an inode's attributes take in memory, in bytes.
func (n *Node) xattrsMemory() (bytes int64) {
	for _, x := range n.Xattrs {
		bytes += int64(64 + len(x.Name) + len(x.Value))
	}
	return bytes
}

// xattrsSize is what they take in EROFS, in bytes.
func (n *Node) xattrsSize() int {
	size := 12
	for _, x := range n.Xattrs {
		size += 4 + len(x.Value)
		if x.Name != accessACL && x.Name != defaultACL { // those are only a number
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

// The kernel's struct vfs_cap_data (include/uapi/linux/capability.h): a word
// of version and flags, four words of bits, and in version 3 the user ID of
// the namespace's root.
const (
	capV2, capV2Size = 0x02000000, 20
	capV3, capV3Size = 0x03000000, 24
	capEffective     = 1
)

// canonicalCapability checks file capabilities and returns them as they are
// read back: those of version 3 that belong to the machine's own root are those
// of version 2.
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
	return nil, errors.New("capabilities of an unknown form")
}
