package site

import (
	"fmt"
	"os"
	"strings"
	"time"

	"lighter/proc"

	"golang.org/x/sys/unix"
)

// abortConnections ends the FUSE connections of all mounts in this enclosure. Processes that wait
// for an answer get an error. Otherwise a process that waits for its own FUSE server could not be
// killed. The enclosure, and `sync` on the whole host, would wait for that process.
func abortConnections() {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		fmt.Fprintln(os.Stderr, "site: FUSE connections are not aborted:", err)
		return
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		before, after, _ := strings.Cut(line, " - ")
		if kind, _, _ := strings.Cut(after, " "); kind != "fuse" && !strings.HasPrefix(kind, "fuse.") ||
			before == line {
			continue
		}
		// MNT_FORCE ends the connection first, so the call does not wait. Errors are ignored,
		// because the mount may be gone, or hidden.
		_ = unix.Unmount(mountPoint(fields), unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
}

// watchHang aborts the enclosure's FUSE connections if the main thread of the enclosure's program
// has ended, but the process has not.
func watchHang(child int) {
	for dead := 0; ; time.Sleep(time.Second) {
		if !proc.IsDead(child) {
			dead = 0
		} else if dead++; dead > 2 { // in the first seconds, the process may still end by itself
			abortConnections()
		}
	}
}
