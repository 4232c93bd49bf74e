package directory

import (
	"context"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// requester is the process whose request has an image mounted.
type requester struct {
	thread uint32 // 0: unknown, because it is in another PID namespace
	uid    uint32 // it may be one of many numbers that a user has in a user namespace
	link   bool   // it reads the image's link: the tree is mapped into its user namespace
}

// requesterOf returns the process of a request.
func requesterOf(ctx context.Context) requester {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return requester{}
	}
	return requester{thread: caller.Pid, uid: caller.Uid}
}

// user returns the user for whom the request counts: the one who has made the process's user
// namespace, or the process's own user in the node's namespace.
func (r requester) user() (uint32, error) {
	if r.thread == 0 {
		return r.uid, nil
	}
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return 0, err
	}
	its, err := os.Stat(fmt.Sprintf("/proc/%d/ns/user", r.thread))
	if err != nil || os.SameFile(own, its) {
		return r.uid, err
	}
	return namespaceUser(r.thread)
}

// userOf returns the user who has made the user namespace that an image's owners are mapped into,
// or 0: the namespace was made by root, or by an unknown user, or the owners are not mapped.
func userOf(k key) uint32 {
	if !isMapped(k) {
		return 0
	}
	text, _, found := strings.Cut(strings.TrimPrefix(path.Dir(k.name), mappedPrefix), "-")
	user, err := strconv.ParseUint(text, 10, 32)
	if !found || err != nil { // earlier versions wrote no user
		return 0
	}
	return uint32(user)
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
