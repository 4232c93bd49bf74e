package directory

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// userOf returns the user who has made the user namespace that an image's owners are mapped into,
// or "": the namespace was made by root, or by an unknown user, or the owners are not mapped.
func userOf(k key) string {
	if !isMapped(k) {
		return ""
	}
	user, _, found := strings.Cut(strings.TrimPrefix(path.Dir(k.name), mappedPrefix), "-")
	if !found || user == "0" { // earlier versions wrote no user
		return ""
	}
	return user
}

// namespaceUser returns the user who has made a thread's user namespace. In a namespace below
// another one, a user may have many numbers. So it is the one who has made the topmost namespace
// below the node's own.
func namespaceUser(thread uint32) (user uint32, err error) {
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return 0, err
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", thread))
	if err != nil {
		return 0, err
	}
	for {
		fd, err := unix.IoctlRetInt(int(space.Fd()), nsGetParent)
		if err != nil {
			_ = space.Close()
			return 0, fmt.Errorf("get the parent of a user namespace: %w", err)
		}
		parent := os.NewFile(uintptr(fd), "user namespace")
		above, err := parent.Stat()
		if err != nil || os.SameFile(above, own) {
			if err == nil {
				user, err = unix.IoctlGetUint32(int(space.Fd()), nsGetOwner)
			}
			_, _ = space.Close(), parent.Close()
			return user, err
		}
		_ = space.Close()
		space = parent
	}
}

// The requests of ioctl_nsfs(2): the user namespace above, and the user who has made one.
const (
	nsGetParent = 0xb702
	nsGetOwner  = 0xb704
)
