package mount

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// tableEntry is one mount in the kernel's mount table.
type tableEntry struct {
	// For a tree, source is the path of its metadata image, also if that is behind a loop device.
	// If the loop device was freed meanwhile, source is the loop device's path. For the FUSE file
	// system on devices/ it is "lighter".
	source string
	mode   Mode   // Loop if the mount's source is a loop device, else File
	number string // MAJOR:MINOR of the file system
}

// mountPoints returns the mounts on root and below it, by mount point. Of several mounts on one
// mount point, it returns the uppermost.
func mountPoints(root string) (map[string]tableEntry, error) {
	root, err := filepath.EvalSymlinks(root) // the kernel's table has paths without symbolic links
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	list, err := readTable(mountinfo.PrefixFilter(strings.TrimSuffix(root, "/")))
	if err != nil {
		return nil, fmt.Errorf("list the mounts below %s: %w", root, err)
	}
	mounts := map[string]tableEntry{}
	for _, m := range list { // the uppermost mount comes last
		entry := tableEntry{source: m.Source, mode: File, number: fmt.Sprintf("%d:%d", m.Major, m.Minor)}
		if strings.HasPrefix(m.Source, loopPrefix) {
			entry.source, entry.mode = backing(m.Source), Loop
		}
		mounts[m.Mountpoint] = entry
	}
	return mounts, nil
}

// readTable returns the mounts of this process's namespace that pass a filter. Unlike
// mountinfo.GetMounts, it reads the table of the process, not that of the calling thread.
func readTable(filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseTable(table, filter)
}

// parseTable returns the mounts of a table that pass a filter. It skips lines longer than maxLine:
// no mount of a node has such a line, and package mountinfo would reject the whole table because of
// a line of 64 KiB.
func parseTable(table []byte, filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	var short bytes.Buffer
	for line := range bytes.Lines(table) {
		if len(line) <= maxLine {
			short.Write(line)
		}
	}
	return mountinfo.GetMountsFromReader(&short, filter)
}

// mountedOn returns the source of the uppermost mount on dir, or "" if nothing is mounted there.
// dir is an absolute path without symbolic links, as in the kernel's table.
func mountedOn(dir string) (source string, err error) {
	mounts, err := mountPoints(dir)
	return mounts[dir].source, err
}

// Points returns the mount points on dir and below it, the deepest first. If dir does not exist,
// there are none.
func Points(dir string) ([]string, error) {
	mounts, err := mountPoints(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	points := slices.Sorted(maps.Keys(mounts))
	slices.Reverse(points)
	return points, err
}
