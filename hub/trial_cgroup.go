package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// cgroupRoot is where control groups are mounted.
	cgroupRoot = "/sys/fs/cgroup"
	// The processes of a killed trial take a moment to end. Until then the control group cannot be
	// removed: that is tried cgroupTries times, with a pause of cgroupPause.
	cgroupTries = 20
	cgroupPause = 100 * time.Millisecond
)

// trialCgroup names the control group of the trials of the hub in root. Hubs of the same path in
// different containers have different ones.
func trialCgroup(root string) (string, error) {
	info, err := os.Stat(root)
	if err != nil {
		return "", err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("lighter-trial-%x-%x", stat.Dev, stat.Ino), nil
}

// removeCgroup removes the control group of a killed trial, below mount and, with cgroup v1, in the
// hierarchy of each controller.
func removeCgroup(mount, name string) (err error) {
	for try := 0; try < cgroupTries; try++ {
		if try > 0 {
			time.Sleep(cgroupPause)
		}
		if err = removeCgroupNow(mount, name); err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove the control group of a trial: %w", err)
}

func removeCgroupNow(mount, name string) (err error) {
	left, _ := filepath.Glob(filepath.Join(mount, "*", name)) // the pattern is well formed
	for _, dir := range append(left, filepath.Join(mount, name)) {
		// Remove, unlike RemoveAll, does not try to delete the files in it, which the kernel
		// removes.
		if e := os.Remove(dir); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
