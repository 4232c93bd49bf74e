package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/node"
	"lighter/store/disk"
)

// lookAtRoot examines the node's root directory.
func (d *doctor) lookAtRoot() {
	const area = "root"
	if os.Geteuid() == 0 {
		d.add(area, OK, "this runs as root, as a node has to", "")
	} else {
		d.add(area, Unchecked, "this does not run as root, as a node has to: it cannot examine everything",
			"sudo lighter doctor")
	}
	root := d.config.Root
	var stat unix.Stat_t
	switch err := unix.Stat(root, &stat); {
	case errors.Is(err, fs.ErrNotExist):
		d.add(area, OK, root+" does not exist yet: the node makes it", "")
	case err != nil:
		d.add(area, Unchecked, "examine "+root+": "+err.Error(), "sudo lighter doctor")
	default:
		d.judgeOwner(root, stat)
	}
	d.judgeSecurity()
}

func (d *doctor) judgeOwner(root string, stat unix.Stat_t) {
	const area = "root"
	switch mode := stat.Mode & 0o7777; {
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		d.add(area, Problem, root+" is not a directory", "give the node another --root")
	case stat.Uid != 0 || mode&0o022 != 0:
		d.add(area, Problem, fmt.Sprintf("others than root can write to %s (owner %d, mode %04o): the node refuses it",
			root, stat.Uid, mode),
			fmt.Sprintf("chown root %s; chmod 700 %s", root, root))
	case mode&0o077 != 0:
		d.add(area, Warning, fmt.Sprintf("others than root can read %s (mode %04o), and so images", root, mode),
			"chmod 700 "+root)
	default:
		d.add(area, OK, "only root can use "+root, "")
	}
}

// judgeSecurity examines security modules of the kernel.
func (d *doctor) judgeSecurity() {
	const area = "root"
	if text, err := os.ReadFile(d.path("sys/fs/selinux/enforce")); err == nil {
		if strings.TrimSpace(string(text)) == "1" {
			d.add(area, Warning, "SELinux is enforced: containers read images only if their label allows it",
				"let containerd set labels (enable_selinux = true in its CRI configuration); ausearch -m avc -ts recent shows what was refused")
			return
		}
		d.add(area, OK, "SELinux is permissive, and refuses nothing", "")
	}
	if text, err := os.ReadFile(d.path("sys/module/apparmor/parameters/enabled")); err == nil && strings.TrimSpace(string(text)) == "Y" {
		d.add(area, OK, "AppArmor is on; a node needs no profile (if one refuses something: dmesg | grep apparmor)", "")
	}
}

// fileSystem is a file system that a root may be on.
type fileSystem struct {
	name  string
	level Level
	what  string
}

// fileSystems has the known file systems by their numbers in statfs(2).
var fileSystems = map[int64]fileSystem{
	unix.EXT4_SUPER_MAGIC:      {"ext4", OK, ""},
	unix.XFS_SUPER_MAGIC:       {"xfs", OK, ""},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", OK, ""},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", OK, ""},
	unix.TMPFS_MAGIC:           {"tmpfs", Warning, "the cache and all snapshots are lost at a reboot"},
	unix.RAMFS_MAGIC:           {"ramfs", Problem, "it has no limit, and is lost at a reboot"},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", Problem, "the kernel mounts neither EROFS from it nor an overlay on it"},
	unix.NFS_SUPER_MAGIC: {"NFS", Problem,
		"an overlay cannot write to it, and containers would wait for its server"},
	unix.SMB2_SUPER_MAGIC: {"SMB", Problem,
		"an overlay cannot write to it, and containers would wait for its server"},
	unix.FUSE_SUPER_MAGIC: {"FUSE", Problem, "containers would wait for its server"},
	unix.SQUASHFS_MAGIC:   {"squashfs", Problem, "it cannot be written"},
}

// space is the size of a file system, in bytes and files.
type space struct {
	kind             int64
	size, free       int64
	files, freeFiles int64
	readOnly         bool
	used, limit      int64 // of the running node's cache; or 0 and the configured limit
	low              int64 // bytes that the cache leaves free
}

// lookAtDisk examines whether the disk has room for the cache, and can be written.
func (d *doctor) lookAtDisk() {
	const area = "disk"
	var s unix.Statfs_t
	dir := d.config.Root
	err := unix.Statfs(dir, &s)
	for ; errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &s) {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		d.add(area, Unchecked, "examine the file system of "+d.config.Root+": "+err.Error(), "")
		return
	}
	now := space{
		kind: int64(s.Type), size: int64(s.Blocks) * s.Bsize, free: int64(s.Bavail) * s.Bsize, files: int64(s.Files), freeFiles: int64(s.Ffree),
		readOnly: s.Flags&unix.ST_RDONLY != 0, limit: int64(d.config.CacheSize),
	}
	now.low = disk.Space(d.config.FreeLow).Of(now.size)
	if d.status != nil {
		now.limit, now.used, now.low = d.status.Cache.Room, d.status.Cache.Used, 0 // its room excludes low already
	}
	d.judgeSpace(now)
	if os.Geteuid() == 0 && !now.readOnly {
		d.tryWriting(dir)
	}
}

// full is the used part of a disk above which it counts as full: the kubelet begins to evict pods
// at 15 % of free space.
const full = 0.85

func (d *doctor) judgeSpace(s space) {
	const area = "disk"
	if known, ok := fileSystems[s.kind]; !ok {
		d.add(area, Warning, fmt.Sprintf("the file system of %s (0x%x) was never tested", d.config.Root, s.kind),
			"a --root on ext4, xfs (ftype=1) or btrfs")
	} else if known.what != "" {
		d.add(area, known.level, d.config.Root+" is on "+known.name+": "+known.what,
			"a --root on ext4, xfs (ftype=1) or btrfs")
	} else {
		d.add(area, OK, d.config.Root+" is on "+known.name, "")
	}
	free, size := node.Size(s.free).String(), node.Size(s.size).String()
	grow := max(0, min(s.limit-s.used, s.free-s.low))
	mend := "less other data on it, or a larger disk"
	if grow > 0 {
		mend = fmt.Sprintf("--disk-free-low 17%%, or --cache-size %s or less, or a larger disk",
			node.Size(max(s.used+s.free/2, 64<<20)))
	}
	switch {
	case s.readOnly:
		d.add(area, Problem, "the disk is read-only", "dmesg | tail; mount -o remount,rw the file system of "+d.config.Root)
	case s.free < 64<<20 || s.files > 0 && s.freeFiles < 1000:
		d.add(area, Problem, fmt.Sprintf("the disk is full: %s and %d files are free of %s", free, s.freeFiles, size),
			"lighter cache prune, and free space on the disk; "+mend)
	case float64(s.size-s.free+grow) > full*float64(s.size):
		d.add(area, Warning, fmt.Sprintf("%s are free of %s, and the cache may still grow by %s: that leaves less than 15 %% free",
			free, size, node.Size(grow)), mend)
	default:
		d.add(area, OK, fmt.Sprintf("%s are free of %s, and the cache may still grow by %s", free, size, node.Size(grow)), "")
	}
}

// tryWriting writes a file to the disk, and removes it.
func (d *doctor) tryWriting(dir string) {
	const area = "disk"
	file, err := os.CreateTemp(dir, "doctor-")
	if err == nil {
		_, err = file.Write(make([]byte, 64<<10))
		err = errors.Join(err, file.Sync(), file.Close(), os.Remove(file.Name()))
	}
	if err != nil {
		d.add(area, Problem, "cannot write to the disk: "+err.Error(), "df -h, df -i and dmesg show why")
	}
}
