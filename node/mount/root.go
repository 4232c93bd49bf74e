package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// RootOf returns a process in whose mount namespace the file system on dir is the root: a process
// of a container. Without such a process it returns 0. Processes that end meanwhile do not count.
func RootOf(dir string) (pid int, err error) {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return 0, err
	}
	isRoot := func(m *mountinfo.Info) (skip, stop bool) {
		found := m.Mountpoint == "/" && m.Major == int(unix.Major(stat.Dev)) && m.Minor == int(unix.Minor(stat.Dev))
		return !found, found
	}
	spaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for _, space := range spaces {
		name, err := os.Readlink(space)
		if err != nil || seen[name] {
			continue
		}
		process := filepath.Dir(filepath.Dir(space))
		table, err := os.ReadFile(filepath.Join(process, "mountinfo"))
		if err != nil {
			continue // the process ends; another process may be in the same namespace
		}
		seen[name] = true
		roots, err := parseTable(table, isRoot)
		if err != nil {
			return 0, fmt.Errorf("read the mounts of %s: %w", process, err)
		}
		if len(roots) > 0 {
			pid, err := strconv.Atoi(filepath.Base(process))
			return pid, err
		}
	}
	return 0, nil
}
