package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxAccounts bounds an image's lists of users and of groups, in bytes.
const maxAccounts = 4 << 20

// userOf finds whom an image is to run as, USER[:GROUP] by name or number, among those
// that the image below root has, as runtimes do. A name that it does not have is an
// error: what would run as root instead could do more than the image says.
func userOf(root, text string) (u specs.User, err error) {
	passwd, err := openAccounts(root, "etc/passwd")
	if err != nil {
		return u, err
	}
	defer passwd.Close()
	group, err := openAccounts(root, "etc/group")
	if err != nil {
		return u, err
	}
	defer group.Close()
	found, err := user.GetExecUser(text, nil, passwd, group)
	if err != nil {
		return u, fmt.Errorf("whom to run as (USER %s): %w", text, err)
	}
	numbers := append([]int{found.Uid, found.Gid}, found.Sgids...)
	for _, n := range numbers {
		if n < 0 || n >= sandboxIDs {
			return u, fmt.Errorf("whom to run as (USER %s): %d is not among the %d users and groups of a trial", text, n, sandboxIDs)
		}
	}
	u.UID, u.GID = uint32(found.Uid), uint32(found.Gid)
	for _, n := range found.Sgids {
		u.AdditionalGids = append(u.AdditionalGids, uint32(n))
	}
	return u, nil
}

// accounts is a list of users or of groups; without a file it is empty.
type accounts struct {
	io.Reader
	file *os.File
}

// openAccounts opens a file of an image, whose links lead nowhere else.
func openAccounts(root, path string) (*accounts, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return &accounts{Reader: io.LimitReader(nil, 0)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's /%s: %w", path, err)
	}
	found := os.NewFile(uintptr(fd), path)
	defer found.Close()
	file, err := openRegular(found)
	if err != nil {
		return nil, fmt.Errorf("read the image's /%s: %w", path, err)
	}
	return &accounts{io.LimitReader(file, maxAccounts), file}, nil
}

// openRegular opens what was only found so far, if it is a file: to open a device,
// which an image may have in its place, does something to this machine.
func openRegular(found *os.File) (*os.File, error) {
	info, err := found.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no file")
	case info.Size() > maxAccounts:
		return nil, fmt.Errorf("it has more than %d bytes", maxAccounts)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", found.Fd()))
}

// Close closes the file, if there is one.
func (a *accounts) Close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}
