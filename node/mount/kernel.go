package mount

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode says how the kernel gets at the two files of a tree.
type Mode string

const (
	Auto Mode = "auto" // as files where the kernel can, else behind loop devices
	File Mode = "file" // as they are: Linux 6.12, on an ordinary local file system
	Loop Mode = "loop" // each behind a loop device: Linux 5.16, and any file system
	None Mode = "none" // not at all: no tree is mounted
)

// Modes lists the modes.
func Modes() []Mode { return []Mode{Auto, File, Loop, None} }

// kernel is what mounts trees.
type kernel struct {
	mode  Mode
	mount func(source, target, fstype string, flags uintptr, data string) error // the system call
}

// mountErofs mounts a metadata image on the directory dir, with device as the
// file that holds the data, and returns the way that it took, File or Loop. It
// does not read from the device.
//
// The kernel's read_ahead_kb stays at its default of 128. More makes the kernel
// ask for bytes that nobody reads (measured on Linux 6.18, importing Python
// packages: 1.5 times as many at 1024), in nearly as many reads; reading ahead
// of those who read on is the device's. Behind loop devices its reads are as long
// and as many (docs/decisions/loop.md).
func (k kernel) mountErofs(metadata, device, dir string) (Mode, error) {
	if strings.Contains(device, ",") {
		return "", fmt.Errorf("mount %s with EROFS: the kernel takes no path with a comma for a device, and %s has one: choose another root directory", metadata, device)
	}
	var tried error
	if k.mode == File || k.mode == Auto {
		err := k.erofs(metadata, device, dir)
		if err == nil {
			return File, nil
		}
		tried = fmt.Errorf("mount %s with EROFS on %s: %w%s", metadata, dir, err, erofsHint(err))
		if k.mode == File || !wantsBlocks(err) {
			return "", tried
		}
	}
	metadataLoop, deviceLoop, release, err := attachBoth(metadata, device)
	if err == nil {
		defer release()
		err = k.erofs(metadataLoop, deviceLoop, dir)
	}
	if err != nil {
		return "", errors.Join(tried, fmt.Errorf("mount %s with EROFS on %s, behind loop devices: %w%s", metadata, dir, err, erofsHint(err)))
	}
	return Loop, nil
}

// mountLocal is mountErofs for a device that is an ordinary file: it is read past its
// own page cache, where the kernel can, or else each page of it would be
// in memory twice.
func (k kernel) mountLocal(metadata, device, dir string) (Mode, error) {
	if k.mode == Loop {
		return k.mountErofs(metadata, device, dir)
	}
	if k.erofs(metadata, device+",directio", dir) == nil {
		return File, nil
	}
	return k.mountErofs(metadata, device, dir)
}

func (k kernel) erofs(source, device, dir string) error {
	// The flags are those that an unpacked tree would have: a snapshot may be
	// bind-mounted from here, and its device nodes and set-user-ID programs have
	// to work then. That others cannot reach them is ensured by the directories
	// above, which are root's alone.
	return k.mount(source, dir, "erofs", unix.MS_RDONLY, "device="+device)
}

// wantsBlocks tells whether the kernel would mount the image from a block device.
func wantsBlocks(err error) bool { return errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ELOOP) }

// erofsHint says what the kernel's error means where it does not say it itself.
func erofsHint(err error) string {
	switch {
	case errors.Is(err, unix.ENOTBLK), errors.Is(err, unix.ELOOP):
		return " (this kernel mounts EROFS from block devices only, or the image lies on a file system that it cannot mount from: use mount_mode loop, or Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE and an ordinary local file system)"
	case errors.Is(err, unix.ENODEV):
		return " (this kernel has no EROFS: load the module erofs, or use a kernel with CONFIG_EROFS_FS)"
	case errors.Is(err, unix.EPERM):
		return " (this needs root)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EOPNOTSUPP):
		return " (the kernel does not take the image; its log says why)"
	default:
		return ""
	}
}

// unmount unmounts what is mounted on dir, however many times. That nothing is,
// or that there is no dir, is no error.
//
// It never detaches a mount that is in use: its users would go on with a tree
// that nobody knows of any more.
func unmount(dir string) error {
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // there may be another one below
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return unmountError(dir, err)
		}
	}
}

func unmountError(dir string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: %w (a process works in it, or something is mounted in it: see `fuser -m` and /proc/self/mountinfo)", dir, err)
	}
	return fmt.Errorf("unmount %s: %w", dir, err)
}

// detach takes away what is mounted on dir, however many times, though it may be
// in use: its users keep it, and nobody else sees it any more. It is for mounts
// whose devices are not served and never will be.
func detach(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // there may be another one below
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("take away what a former node mounted on %s: %w", dir, err)
		}
	}
}

// mountPoints lists what is mounted below root, or on it, by the directory that
// it is mounted on. Where several mounts lie on each other, it is the one that is
// seen.
func mountPoints(root string) (map[string]mountEntry, error) {
	root, err := filepath.EvalSymlinks(root) // as the kernel writes it
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	mounts := map[string]mountEntry{}
	err = eachMount(func(m mountEntry) {
		if m.dir == root || strings.HasPrefix(m.dir, strings.TrimSuffix(root, "/")+"/") {
			if strings.HasPrefix(m.source, loopPrefix) {
				m.source, m.mode = backing(m.source), Loop
			}
			mounts[m.dir] = m
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the mounts below %s: %w", root, err)
	}
	return mounts, nil
}

// eachMount calls see with each mount of this process's namespace, those that lie on
// others later.
func eachMount(see func(m mountEntry)) error {
	const path = "/proc/self/mountinfo"
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20) // overlay's options name each layer
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		see(m)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// mountEntry is what is used of one line of a mountinfo file.
type mountEntry struct {
	id      string // of the mount
	kind    string // of the file system: erofs, overlay
	options string // of the file system, as the kernel writes them
	dir     string
	source  string // a metadata image, also behind a loop device; "lighter" for the devices
	number  string // of the file system, MAJOR:MINOR
	mode    Mode   // of a tree: File or Loop
}

// parseMount reads one line of a mountinfo file (proc_pid_mountinfo(5)):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseMount(line string) (mountEntry, error) {
	fields, rest, ok := strings.Cut(line, " - ")
	before, after := strings.Split(fields, " "), strings.Split(rest, " ")
	if !ok || len(before) < 6 || len(after) < 2 {
		return mountEntry{}, fmt.Errorf("not a mount: %q", line)
	}
	m := mountEntry{id: before[0], kind: after[0], dir: unescape(before[4]), source: unescape(after[1]), number: before[2], mode: File}
	if len(after) > 2 {
		m.options = after[2]
	}
	return m, nil
}

// unescape undoes what the kernel does to blanks and backslashes in paths: a
// backslash and three octal digits.
func unescape(s string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+4 > len(s) {
			return b.String() + s
		}
		b.WriteString(s[:i])
		if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
			b.WriteByte(byte(n))
		} else {
			b.WriteString(s[i : i+4])
		}
		s = s[i+4:]
	}
}
