package site

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"lighter/proc"
)

// PowerOff ends all processes in the machine's network at once, and then all mounts below the
// machine's directory and the given ones. It removes what is in memory on a machine: containerd's
// runtime state, and everything in /run. The caller starts the machine's services again. Unlike a
// power cut, it loses no unsynced data.
func (m *Machine) PowerOff(mounted ...string) error {
	for end := time.Now().Add(stopTimeout); ; time.Sleep(time.Millisecond) {
		pids, err := m.processes()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v still exist %v after SIGKILL", pids, stopTimeout)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have ended
		}
	}
	volatile := []string{m.path("state")}
	entries, err := os.ReadDir("/run")
	for _, e := range entries {
		if path := filepath.Join("/run", e.Name()); path != workInside {
			volatile = append(volatile, path)
		}
	}
	errs := []error{err}
	for _, dir := range slices.Concat([]string{m.dir}, mounted, volatile) {
		errs = append(errs, unmountBelow(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err // nothing below a mount may be removed
	}
	for _, dir := range volatile {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// processes lists the processes in the machine's network, apart from the one that holds it.
func (m *Machine) processes() ([]int, error) {
	network, err := os.Readlink(networkOf(m.holder.pid()))
	if err != nil {
		return nil, err
	}
	all, err := proc.All()
	return slices.DeleteFunc(all, func(pid int) bool {
		at, err := os.Readlink(networkOf(pid)) // fails if the process has just ended
		return err != nil || at != network || pid == m.holder.pid()
	}), err
}
