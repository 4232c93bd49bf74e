package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/bytesize"
	"lighter/store/disk"
)

// fileSystem is a file system that a root may be on.
type fileSystem struct {
	name  string
	level Level
	what  string // why level is not OK
}

const (
	goodDisk   = "a --root on ext4, xfs (ftype=1) or btrfs"
	noOverlay  = "an overlay cannot write to it, and containers would wait for its server"
	waitServer = "containers would wait for its server"
)

// knownFileSystems has the known file systems by their numbers in statfs(2).
var knownFileSystems = map[int64]fileSystem{
	unix.EXT4_SUPER_MAGIC:      {"ext4", OK, ""},
	unix.XFS_SUPER_MAGIC:       {"xfs", OK, ""},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", OK, ""},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", OK, ""},
	unix.TMPFS_MAGIC:           {"tmpfs", Warning, "the cache and all snapshots are lost at a reboot"},
	unix.RAMFS_MAGIC:           {"ramfs", Problem, "it has no limit, and is lost at a reboot"},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", Problem, "the kernel mounts neither EROFS from it nor an overlay on it"},
	unix.NFS_SUPER_MAGIC:       {"NFS", Problem, noOverlay},
	unix.SMB2_SUPER_MAGIC:      {"SMB", Problem, noOverlay},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", Problem, waitServer},
	unix.SQUASHFS_MAGIC:        {"squashfs", Problem, "it cannot be written"},
}

// space is the size of a file system, in bytes and files, and the size of the cache on it.
type space struct {
	kind             int64 // number in statfs(2)
	size, free       int64
	files, freeFiles int64
	readOnly         bool
	used, limit      int64 // bytes of the running node's cache; if no node runs: 0 and the configured limit
	low              int64 // bytes that the cache leaves free on the disk; 0: limit takes them into account already
}

// disk checks whether the disk has room for the cache.
func (m *machine) disk(context.Context) []Finding {
	var s unix.Statfs_t
	dir := m.config.Root
	err := unix.Statfs(dir, &s)
	for ; errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &s) {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return unchecked(fmt.Sprintf("examine the file system of %s: %v", m.config.Root, err), "")
	}
	now := space{
		kind: int64(s.Type), size: int64(s.Blocks) * s.Bsize, free: int64(s.Bavail) * s.Bsize,
		files: int64(s.Files), freeFiles: int64(s.Ffree), readOnly: s.Flags&unix.ST_RDONLY != 0,
		limit: int64(m.config.CacheSize),
	}
	now.low = disk.Space(m.config.FreeLow).Of(now.size)
	if m.status != nil {
		now.limit, now.used, now.low = m.status.Cache.Room, m.status.Cache.Used, 0
	}
	return append(m.judgeFileSystem(now.kind), m.judgeSpace(now)...)
}

func (m *machine) judgeFileSystem(kind int64) []Finding {
	known, ok := knownFileSystems[kind]
	where := m.config.Root + " is on " + known.name
	return first([]rule{
		{!ok, Warning, fmt.Sprintf("nodes were not tested on the file system of %s (0x%x)", m.config.Root, kind),
			goodDisk},
		{known.level == OK, OK, where, ""},
		{true, known.level, where + ": " + known.what, goodDisk},
	})
}

// maxUsed is the share of a disk's space above which judgeSpace warns: the kubelet begins to evict
// pods when less than 15 % are free.
const maxUsed = 0.85

// rounded formats a number of bytes for users, as 20GiB.
func rounded(bytes int64) string { return bytesize.Size(bytes).Rounded() }

func (m *machine) judgeSpace(s space) []Finding {
	grow := max(0, min(s.limit-s.used, s.free-s.low))
	room := fmt.Sprintf("%s are free of %s, and the cache may still grow by %s",
		rounded(s.free), rounded(s.size), rounded(grow))
	repair := "remove other data from it, or use a larger disk"
	if grow > 0 {
		repair = fmt.Sprintf("--disk-free-low 17%%, or --cache-size %s or less, or a larger disk",
			rounded(max(s.used+s.free/2, 64<<20)))
	}
	return first([]rule{
		{s.readOnly, Problem, "the disk is read-only",
			"dmesg | tail; mount -o remount,rw the file system of " + m.config.Root},
		{s.free < 64<<20 || s.files > 0 && s.freeFiles < 1000, Problem,
			fmt.Sprintf("the disk is full: %s and %d files are free of %s",
				rounded(s.free), s.freeFiles, rounded(s.size)),
			"lighter cache prune, and free space on the disk; " + repair},
		{float64(s.size-s.free+grow) > maxUsed*float64(s.size), Warning,
			room + ": that leaves less than 15 % free", repair},
		{true, OK, room, ""},
	})
}
