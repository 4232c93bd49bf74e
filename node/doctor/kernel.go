package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/node/mount"
)

// release returns the kernel's release, as uname -r prints it.
func (m *machine) release() string {
	text, err := os.ReadFile(m.path("proc/sys/kernel/osrelease"))
	if err != nil {
		return "this kernel"
	}
	return strings.TrimSpace(string(text))
}

// trialMounts tries whether this kernel can mount images.
func (m *machine) trialMounts(context.Context) []Finding {
	if os.Geteuid() != 0 {
		return unchecked("only root can test whether images can be mounted", asRoot)
	}
	dir, err := m.scratch()
	if err != nil {
		return []Finding{{Level: Problem, What: "cannot write to the disk: " + err.Error(),
			Repair: "df -h, df -i and dmesg show why"}}
	}
	defer os.RemoveAll(dir) // if this fails, the directory that stays does no harm
	return m.judgeTrial(try(dir))
}

func (m *machine) judgeTrial(t trial) []Finding {
	if t.failed != nil {
		return unchecked("cannot try a mount: "+t.failed.Error(), "")
	}
	return slices.Concat(m.judgeErofs(t.erofs), first([]rule{
		{t.overlay == nil, OK, "overlayfs works below " + m.config.Root, ""},
		{true, Problem, fmt.Sprintf("overlayfs, with its upper directory below %s, cannot be mounted: %v",
			m.config.Root, t.overlay), "modprobe overlay; " + goodDisk},
	}), first([]rule{
		{t.fuse != nil, Problem, fmt.Sprint(t.fuse), "modprobe fuse; ls -l /dev/fuse (mknod /dev/fuse c 10 229)"},
		{t.resends, OK, "FUSE works, and the kernel resends reads of a killed daemon", ""},
		{true, OK, "FUSE works; " + m.release() +
			" does not resend reads, so the node keeps a journal of reads in flight", ""},
	}))
}

// judgeErofs judges the error of an attempt to mount EROFS from plain files. Older kernels mount
// EROFS only from block devices.
func (m *machine) judgeErofs(err error) []Finding {
	const auto = `mount_mode = "auto", which uses loop devices in this case`
	mode := m.config.MountMode
	onlyBlocks := errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ELOOP)
	blocks := m.release() + " mounts EROFS from block devices only, or not from the file system of " + m.config.Root
	_, noLoops := os.Stat(m.path("dev/loop-control"))
	return first([]rule{
		{err == nil, OK, "EROFS can be mounted from plain files below " + m.config.Root, ""},
		{!onlyBlocks, Problem, fmt.Sprint("EROFS cannot be mounted: ", err),
			"modprobe erofs, or a kernel with CONFIG_EROFS_FS; dmesg | tail"},
		{mode == mount.File, Problem, blocks + ", and mount_mode is file: no image is lazy", auto},
		{mode == mount.None, Warning, blocks + "; mount_mode is none, and no image is lazy", auto},
		{noLoops != nil, Problem, blocks + ", and there are no loop devices: no image is lazy", "modprobe loop"},
		{true, Warning, blocks + ": loop devices are used",
			"Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE, and a --root on ext4, xfs or btrfs"},
	})
}
