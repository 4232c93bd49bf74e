package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"lighter/format/tree"
)

// xattrKinds are the names that EROFS can store: an index for the prefix, and whether a suffix
// follows.
var xattrKinds = []struct {
	index  uint8
	prefix string
	suffix bool
}{
	{1, "user.", true},
	{2, "system.posix_acl_access", false},
	{3, "system.posix_acl_default", false},
	{4, "trusted.", true},
	{6, "security.", true},
}

// splitXattr returns the index of a name's prefix, and the suffix.
func splitXattr(name string) (index uint8, rest string, err error) {
	if len(name) > maxName || strings.IndexByte(name, 0) >= 0 {
		return 0, "", fmt.Errorf("xattr %q: %w", name, ErrXattrName)
	}
	for _, k := range xattrKinds {
		if r, ok := strings.CutPrefix(name, k.prefix); ok && k.suffix == (r != "") {
			return k.index, r, nil
		}
	}
	return 0, "", fmt.Errorf("xattr %q: %w", name, ErrXattrName)
}

// joinXattr is the reverse of splitXattr. It returns "" for values that splitXattr cannot return.
func joinXattr(index uint8, rest []byte) string {
	for _, k := range xattrKinds {
		if k.index != index {
			continue
		}
		if k.suffix == (len(rest) > 0) && len(k.prefix)+len(rest) <= maxName && bytes.IndexByte(rest, 0) < 0 {
			return k.prefix + string(rest)
		}
	}
	return ""
}

// xattrsSize returns the encoded size of a node's extended attributes in bytes, or an error if
// EROFS cannot store them.
func xattrsSize(xattrs []tree.Xattr) (int64, error) {
	if len(xattrs) == 0 {
		return 0, nil
	}
	size := int64(xattrHeadSize)
	for i, x := range xattrs {
		if i > 0 && x.Name <= xattrs[i-1].Name {
			return 0, fmt.Errorf("xattr %q comes after %q", x.Name, xattrs[i-1].Name)
		}
		_, rest, err := splitXattr(x.Name)
		if err != nil {
			return 0, err
		}
		if len(x.Value) > maxXattr {
			return 0, fmt.Errorf("xattr %q of %d bytes: %w", x.Name, len(x.Value), ErrTooLarge)
		}
		size += roundUp(int64(xattrEntrySize+len(rest)+len(x.Value)), 4)
	}
	if size > maxXattrs {
		return 0, fmt.Errorf("xattrs of %d bytes together: %w", size, ErrTooLarge)
	}
	return size, nil
}

// appendXattrs appends extended attributes for which xattrsSize returned no error.
func appendXattrs(b []byte, xattrs []tree.Xattr) []byte {
	if len(xattrs) == 0 {
		return b
	}
	b = append(b, zeros[:xattrHeadSize]...)
	for _, x := range xattrs {
		index, rest, _ := splitXattr(x.Name)
		b = append(b, byte(len(rest)), index)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(x.Value)))
		b = append(b, rest...)
		b = append(b, x.Value...)
		b = append(b, zeros[:-(len(rest)+len(x.Value))&3]...)
	}
	return b
}

// parseXattrs returns the extended attributes of an inode's area, which may be empty. It accepts
// only what appendXattrs writes.
func parseXattrs(area []byte) (xattrs []tree.Xattr, err error) {
	if len(area) == 0 {
		return nil, nil
	}
	if len(area) == xattrHeadSize {
		return nil, errors.New("the area for xattrs is empty")
	}
	if !bytes.Equal(area[:xattrHeadSize], zeros[:xattrHeadSize]) {
		return nil, errors.New("the xattrs' header is not zero")
	}
	last := ""
	for area = area[xattrHeadSize:]; len(area) > 0; {
		nameLen, index := int(area[0]), area[1]
		valueLen := int(binary.LittleEndian.Uint16(area[2:]))
		end := xattrEntrySize + nameLen + valueLen
		padded := int(roundUp(int64(end), 4))
		if padded > len(area) {
			return nil, fmt.Errorf("an xattr of %d bytes ends beyond its inode's xattrs", end)
		}
		rest := area[xattrEntrySize : xattrEntrySize+nameLen]
		name := joinXattr(index, rest)
		if name == "" {
			return nil, fmt.Errorf("no xattr has the name index %d and the name %q", index, rest)
		}
		if name <= last {
			return nil, fmt.Errorf("xattr %q comes after %q", name, last)
		}
		xattrs = append(xattrs, tree.Xattr{Name: name, Value: bytes.Clone(area[xattrEntrySize+nameLen : end])})
		last, area = name, area[padded:]
	}
	return xattrs, nil
}
