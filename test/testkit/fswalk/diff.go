package fswalk

import (
	"fmt"
	"maps"
	"slices"
)

// Options select what Diff compares.
type Options struct {
	// ComparesTime reports whether to compare the modification times at a path. If it is nil, Diff
	// compares them at all paths.
	ComparesTime func(path string, a, b Entry) bool
	// IgnoreNlink ignores the link counts of files.
	IgnoreNlink bool
}

// Diff returns one line for each difference between a and b: first the paths that only a has, then
// the differences at paths that b has, both in bytewise order of the paths.
func Diff(a, b Listing, o Options) []string {
	var lines []string
	for _, path := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[path]; !ok {
			lines = append(lines, fmt.Sprintf("%q: only in the first, %s", path, a[path]))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(b)) {
		x, ok := a[path]
		if !ok {
			lines = append(lines, fmt.Sprintf("%q: only in the second, %s", path, b[path]))
			continue
		}
		for _, d := range diffEntry(path, x, b[path], o) {
			lines = append(lines, fmt.Sprintf("%q: %s", path, d))
		}
	}
	return lines
}

// String returns the entry's mode and owner.
func (e Entry) String() string { return fmt.Sprintf("mode %#o, owner %d:%d", e.Mode, e.UID, e.GID) }

func diffEntry(path string, a, b Entry, o Options) []string {
	var lines []string
	field := func(name string, x, y any) {
		if x != y {
			lines = append(lines, fmt.Sprintf("%s %v and %v", name, x, y))
		}
	}
	field("mode", fmt.Sprintf("%#o", a.Mode), fmt.Sprintf("%#o", b.Mode))
	field("owner", [2]uint32{a.UID, a.GID}, [2]uint32{b.UID, b.GID})
	field("device", a.Rdev, b.Rdev)
	field("size", a.Size, b.Size)
	field("link to", a.Link, b.Link)
	field("SHA-256", a.SHA256, b.SHA256)
	field("same inode as", a.Group, b.Group)
	if !o.IgnoreNlink {
		field("link count", a.Nlink, b.Nlink)
	}
	if o.ComparesTime == nil || o.ComparesTime(path, a, b) {
		field("time", [2]int64{a.Sec, a.Nsec}, [2]int64{b.Sec, b.Nsec})
	}
	names := maps.Clone(a.Xattrs)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, b.Xattrs)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		x, inA := a.Xattrs[name]
		y, inB := b.Xattrs[name]
		if x != y || inA != inB {
			lines = append(lines, fmt.Sprintf("attribute %q %s and %s", name, value(x, inA), value(y, inB)))
		}
	}
	return lines
}

func value(v string, ok bool) string {
	if !ok {
		return "absent"
	}
	return fmt.Sprintf("%x", v)
}
