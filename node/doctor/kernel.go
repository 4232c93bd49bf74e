package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/node/mount"
)

// lookAtKernel examines whether this kernel can mount images.
func (d *doctor) lookAtKernel() {
	const area = "kernel"
	for _, name := range []string{"erofs", "overlay", "fuse"} {
		d.lookAtFileSystem(name)
	}
	if os.Geteuid() != 0 {
		d.add(area, Unchecked, "only root can try whether images can be mounted", "sudo lighter doctor")
		return
	}
	dir, err := d.scratch()
	if err != nil {
		d.add(area, Unchecked, "no directory to try a mount in: "+err.Error(), "")
		return
	}
	defer os.RemoveAll(dir) // an empty directory that remains does no harm
	d.judge(try(dir))
}

// needs are the file systems that a node needs, with the kernel's option of each.
var needs = map[string]struct{ why, option string }{
	"erofs":   {"without it no image is lazy: all are unpacked", "CONFIG_EROFS_FS"},
	"overlay": {"without it no container can be started on an image", "CONFIG_OVERLAY_FS"},
	"fuse":    {"without it no image is lazy: all are unpacked", "CONFIG_FUSE_FS"},
}

func (d *doctor) lookAtFileSystem(name string) {
	const area = "kernel"
	switch built, module := d.hasFileSystem(name); {
	case built:
		d.add(area, OK, "it has "+name, "")
	case module:
		d.add(area, OK, "it has "+name+" as a module, which is loaded when it is needed", "")
	default:
		n := needs[name]
		d.add(area, Problem, fmt.Sprintf("%s has no %s (%s)", d.release(), name, n.why),
			"modprobe "+name+", or a kernel with "+n.option)
	}
}

// hasFileSystem reports whether the kernel has a file system, or a module of it.
func (d *doctor) hasFileSystem(name string) (built, module bool) {
	if text, err := os.ReadFile(d.path("proc/filesystems")); err == nil {
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[len(fields)-1] == name {
				return true, false
			}
		}
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		file, err := os.Open(d.path(filepath.Join("lib/modules", d.release(), list)))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			path, _, _ := strings.Cut(lines.Text(), ":")
			base, _, _ := strings.Cut(filepath.Base(path), ".")
			module = module || base == name
		}
		file.Close()
	}
	return false, module
}

// path returns the path of a file of the system.
func (d *doctor) path(name string) string { return filepath.Join(d.system, name) }

// release returns the kernel's release, as uname -r prints it.
func (d *doctor) release() string {
	text, err := os.ReadFile(d.path("proc/sys/kernel/osrelease"))
	if err != nil {
		return "this kernel"
	}
	return strings.TrimSpace(string(text))
}

// judge adds the findings of a trial.
func (d *doctor) judge(t trial) {
	const area = "kernel"
	if t.begin != nil {
		d.add(area, Unchecked, "cannot try a mount: "+t.begin.Error(), "")
		return
	}
	switch {
	case t.erofs == nil:
		d.add(area, OK, "it mounts EROFS from plain files below "+d.config.Root, "")
	case errors.Is(t.erofs, unix.ENOTBLK), errors.Is(t.erofs, unix.ELOOP):
		d.judgeLoops()
	default:
		d.add(area, Problem, "EROFS cannot be mounted: "+t.erofs.Error(), "dmesg | tail, and a kernel with CONFIG_EROFS_FS")
	}
	if t.erofs == nil {
		d.judgeOverlay(t)
	}
	switch {
	case t.fuse != nil:
		d.add(area, Problem, t.fuse.Error(), "modprobe fuse; ls -l /dev/fuse (mknod /dev/fuse c 10 229)")
	case !t.resends:
		d.add(area, OK, "FUSE works; "+d.release()+" does not resend reads, so the node keeps a journal of reads in flight",
			"")
	default:
		d.add(area, OK, "FUSE works, and the kernel resends reads of a killed daemon", "")
	}
}

// judgeLoops adds the finding for a kernel that mounts EROFS from block devices only.
func (d *doctor) judgeLoops() {
	const area = "kernel"
	what := d.release() + " mounts EROFS from block devices only, or not from the file system of " + d.config.Root
	_, err := os.Stat(d.path("dev/loop-control"))
	switch {
	case d.config.MountMode == mount.File:
		d.add(area, Problem, what+", and mount_mode is file: no image is lazy",
			"mount_mode = \"auto\", which uses loop devices then")
	case d.config.MountMode == mount.None:
		d.add(area, Warning, what+"; mount_mode is none, and no image is lazy",
			"mount_mode = \"auto\", which uses loop devices then")
	case err != nil:
		d.add(area, Problem, what+", and there are no loop devices: no image is lazy", "modprobe loop")
	default:
		d.add(area, Warning, what+": loop devices are used",
			"Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE, and a --root on ext4, xfs or btrfs")
	}
}

func (d *doctor) judgeOverlay(t trial) {
	const area = "kernel"
	switch {
	case t.overlay != nil:
		d.add(area, Problem, "overlayfs on EROFS, with its upper directory below "+d.config.Root+", cannot be mounted: "+t.overlay.Error(),
			"a --root on ext4, xfs (ftype=1) or btrfs")
	case t.userxattr != nil:
		d.add(area, OK, "overlayfs works on it, but not with userxattr, which only a node in a user namespace needs", "")
	default:
		d.add(area, OK, "overlayfs works on it, with userxattr too", "")
	}
	if on, err := os.ReadFile(d.path("sys/module/overlay/parameters/metacopy")); err == nil && strings.TrimSpace(string(on)) == "Y" {
		d.add(area, OK, "overlayfs copies only metadata when a file's owner or mode is changed (metacopy)", "")
	}
	if t.idmap != nil {
		d.add(area, OK, "idmapped mounts of EROFS do not work here, which only user namespaces need: "+t.idmap.Error(), "")
		return
	}
	d.add(area, OK, "idmapped mounts of EROFS work, for user namespaces", "")
}
