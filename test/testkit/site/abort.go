package site

import (
	"fmt"
	"os"
	"strings"
	"time"

	"lighter/proc"

	"golang.org/x/sys/unix"
)

// abortConnections ends the FUSE connections of what is mounted in this enclosure.
// Whoever waits for an answer gets an error. Otherwise a process that holds a
// connection and itself waits for an answer through it could not even be killed, and
// the enclosure, and `sync` on the whole machine, would wait for it.
func abortConnections() {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		fmt.Fprintln(os.Stderr, "site: FUSE connections are left as they are:", err)
		return
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		before, after, _ := strings.Cut(line, " - ")
		if kind, _, _ := strings.Cut(after, " "); kind != "fuse" && !strings.HasPrefix(kind, "fuse.") || before == line {
			continue
		}
		// Forced, it ends the connection before anything is waited for.
		_ = unix.Unmount(mountPoint(fields), unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // it may be gone, or hidden
	}
}

// watchHang aborts the enclosure's connections once the program in it is dead and
// yet does not end.
func watchHang(child int) {
	for dead := 0; ; time.Sleep(time.Second) {
		if !proc.IsDead(child) {
			dead = 0
		} else if dead++; dead > 2 { // otherwise it is just ending
			abortConnections()
		}
	}
}
