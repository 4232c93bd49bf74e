package site

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/proc"
)

// leftovers lists the processes, mounts and loop devices of a closed site.
func (s *Site) leftovers() ([]string, error) {
	var left []string
	pids, err := processes("", s.Dir)
	for _, pid := range pids {
		left = append(left, fmt.Sprintf("process %d: %s", pid, commandLine(pid)))
	}
	mounts, err2 := mountsBelow(s.Dir)
	for _, mount := range mounts {
		left = append(left, "mount "+mount)
	}
	loops, err3 := loopsBelow(s.Dir)
	return append(left, loops...), errors.Join(err, err2, err3)
}

// processes lists the other processes whose executable is exe (any, if empty) and whose command
// line contains word.
func processes(exe, word string) ([]int, error) {
	all, err := proc.All()
	return slices.DeleteFunc(all, func(pid int) bool {
		path, err := os.Readlink(proc.Executable(pid)) // fails if the process has just ended
		return err != nil || pid == os.Getpid() || exe != "" && path != exe ||
			!strings.Contains(commandLine(pid), word)
	}), err
}

// Keepers returns the PIDs of the keepers of a node's root. The peer credentials of a keeper's
// socket would name the daemon that started the keeper.
func Keepers(root string) ([]int, error) {
	all, err := proc.All()
	return slices.DeleteFunc(all, func(pid int) bool {
		args := proc.Arguments(pid)
		return len(args) < 2 || !slices.Equal(args[len(args)-2:], []string{"keeper", root})
	}), err
}

func commandLine(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "" // the process has just ended
	}
	return string(bytes.ReplaceAll(bytes.Trim(b, "\x00"), []byte{0}, []byte{' '}))
}

// mountsBelow lists the mount points at and below dir, in the order of mounting.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []string
	for line := range strings.Lines(string(b)) {
		point := mountPoint(strings.Fields(line))
		if point == dir || strings.HasPrefix(point, dir+"/") {
			mounts = append(mounts, point)
		}
	}
	return mounts, nil
}

// mountPoint returns the mount point in the fields of a line of mountinfo.
func mountPoint(fields []string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
}

// unmountBelow unmounts all mounts at and below dir, the last one first.
func unmountBelow(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, mount := range slices.Backward(mounts) {
		if err := unix.Unmount(mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount, err))
		}
	}
	return errors.Join(errs...)
}

// loopsBelow lists the loop devices on files below dir.
func loopsBelow(dir string) ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var loops []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(b), dir+"/") { // on an error, the device has just been freed
			loops = append(loops, "loop device of "+strings.TrimSpace(string(b)))
		}
	}
	return loops, nil
}
