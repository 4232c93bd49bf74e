package audit

import (
	"archive/tar"
	"bytes"
	"path"
	"slices"

	"lighter/format/tree"
)

// difference returns in what two entries differ without their contents, or nothing.
func difference(a, b *tree.Entry) string {
	link := func(e *tree.Entry) string {
		if e.Type == tar.TypeLink {
			return clean(e.Linkname)
		}
		return e.Linkname
	}
	sameXattr := func(x, y tree.Xattr) bool { return x.Name == y.Name && bytes.Equal(x.Value, y.Value) }
	isDevice := a.Type == tar.TypeChar || a.Type == tar.TypeBlock
	switch {
	case clean(a.Name) != clean(b.Name):
		return "name"
	case a.Type != b.Type:
		return "type"
	case link(a) != link(b):
		return "link target"
	case a.Mode != b.Mode:
		return "mode"
	case uint32(a.UID) != uint32(b.UID) || uint32(a.GID) != uint32(b.GID):
		return "owner"
	case a.Size != b.Size:
		return "size"
	case isDevice && (a.Major != b.Major || a.Minor != b.Minor):
		return "device number"
	case max(a.Mtime.Sec-b.Mtime.Sec, b.Mtime.Sec-a.Mtime.Sec) > 1:
		return "modification time"
	case !slices.EqualFunc(a.Xattrs, b.Xattrs, sameXattr):
		return "list of extended attributes"
	}
	return ""
}

// clean returns the path below the root that a name stands for.
func clean(name string) string { return path.Clean("/" + name) }
