package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// A POSIX ACL as an extended attribute (include/uapi/linux/posix_acl_xattr.h): the version as 32
// bits, and for each entry a tag and permissions of 16 bits each and an ID of 32 bits, all
// little-endian.
const (
	aclVersion   = 2
	aclHeader    = 4 // bytes
	aclEntrySize = 8 // bytes
	noID         = math.MaxUint32
)

// Tags of ACL entries, in their required order.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

type acl []aclEntry

type aclEntry struct {
	tag, perm uint16
	id        uint32 // of aclUser and aclGroup
}

// errACLVersion does not fail the layer's tar entry: containerd drops such an ACL.
var errACLVersion = errors.New("ACL of an unknown version")

// parseACL parses an ACL. The result is nil if there are no entries.
func parseACL(value []byte) (acl, error) {
	if len(value) == 0 {
		return nil, nil
	}
	if len(value) < aclHeader {
		return nil, errInvalid
	}
	if binary.LittleEndian.Uint32(value) != aclVersion {
		return nil, errACLVersion
	}
	value = value[aclHeader:]
	if len(value)%aclEntrySize != 0 {
		return nil, errInvalid
	}
	var a acl
	for ; len(value) > 0; value = value[aclEntrySize:] {
		e := aclEntry{
			tag:  binary.LittleEndian.Uint16(value),
			perm: binary.LittleEndian.Uint16(value[2:]),
			id:   binary.LittleEndian.Uint32(value[4:]),
		}
		switch e.tag {
		case aclUser, aclGroup:
			if e.id == noID {
				return nil, errInvalid
			}
		case aclUserObj, aclGroupObj, aclMask, aclOther:
			e.id = noID
		default:
			return nil, fmt.Errorf("ACL entry with unknown tag %#x", e.tag)
		}
		a = append(a, e)
	}
	return a, nil
}

func (a acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, aclHeader+len(a)*aclEntrySize), aclVersion)
	for _, e := range a {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// check checks what the kernel requires: permissions of 7 at most; tags in ascending order; one
// entry each for the owner, the group and others; and at most one mask. An ACL that names users or
// groups must have a mask.
func (a acl) check() error {
	var count [aclOther + 1]int
	for i, e := range a {
		if e.perm > 7 || i > 0 && e.tag < a[i-1].tag {
			return errInvalid
		}
		count[e.tag]++
	}
	named := count[aclUser]+count[aclGroup] > 0
	if count[aclUserObj] != 1 || count[aclGroupObj] != 1 || count[aclOther] != 1 || count[aclMask] > 1 ||
		named && count[aclMask] == 0 {
		return errInvalid
	}
	return nil
}

// mask returns the mask, or nil. An ACL without a mask is equivalent to a mode.
func (a acl) mask() *aclEntry { return a.find(aclMask) }

func (a acl) find(tag uint16) *aclEntry {
	for i := range a {
		if a[i].tag == tag {
			return &a[i]
		}
	}
	return nil
}

// group returns the entry for the group bits of a mode.
func (a acl) group() *aclEntry {
	if m := a.mask(); m != nil {
		return m
	}
	return a.find(aclGroupObj)
}

// chmod sets the entries for the owner, the mask (without a mask: the group) and others to the
// permissions of a mode.
func (a acl) chmod(mode uint32) {
	a.find(aclUserObj).perm = uint16(mode >> 6 & 7)
	a.group().perm = uint16(mode >> 3 & 7)
	a.find(aclOther).perm = uint16(mode & 7)
}

// setACL sets an access or default ACL. An empty ACL removes the file's ACL. An access ACL also
// sets the mode. If it is equivalent to a mode, it is not stored, and the file's previous one is
// removed. For a symbolic link, or an ACL of an unknown version, setACL does nothing.
func (n *Node) setACL(name string, value []byte) error {
	a, err := parseACL(value)
	switch {
	case err == errACLVersion || err == nil && n.Mode&ModeType == ModeSymlink:
		return nil
	case err != nil:
		return err
	case name == DefaultACL && !n.IsDir() && a != nil:
		return errors.New("default ACL of a file that is not a directory")
	case a == nil:
		n.removeXattr(name)
		return nil
	}
	if err := a.check(); err != nil {
		return err
	}
	if name == accessACL {
		mode := uint32(a.find(aclUserObj).perm)<<6 | uint32(a.group().perm)<<3 | uint32(a.find(aclOther).perm)
		n.Mode = n.Mode&^0o777 | mode
		if a.mask() == nil {
			n.removeXattr(name)
			return nil
		}
	}
	n.storeXattr(name, a.encode())
	return nil
}
