// Package proc asks the kernel about other processes of this machine: which process is at the other
// end of a Unix socket, which program it runs with which arguments, which children it has, when it
// started, and whether it is dead. It changes nothing and sends no signals.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Peer returns the process and user at the other end of a Unix socket (SO_PEERCRED). For a
// connection that this process made, that is the process that listened. The PID is 0 if the
// process is in a PID namespace that is not visible from here.
func Peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, failed)
}

// dialTimeout bounds the wait for a listener that does not accept.
const dialTimeout = 10 * time.Second

// Listener returns the PID of the process that listens on a Unix socket. It is 0 if the process is
// in a PID namespace that is not visible from here. Without a listener, the error is that of the
// connection: fs.ErrNotExist, fs.ErrPermission, unix.ECONNREFUSED.
func Listener(ctx context.Context, socket string) (pid int, err error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	peer, err := Peer(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// All returns the PIDs of all processes that are visible from here.
func All() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Executable returns a path by which the program of a process can be run, even if its file was
// replaced or deleted.
func Executable(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid), "exe") }

// Program returns the name of the file that a process runs, without its directory, or "" if the
// process is not visible.
func Program(pid int) string {
	path, err := os.Readlink(Executable(pid))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// Arguments returns the arguments of a process without its name, or nil if the process is not
// visible.
func Arguments(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")[1:]
}

// Children returns the PIDs of the processes that a process has started and has not waited for.
// There are none if the process is not visible.
func Children(pid int) (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is right
	for _, file := range files {
		list, _ := os.ReadFile(file) // the thread may have ended
		for _, child := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(child); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// StartedBefore reports whether a process started before one of the files was changed, and so has
// to be restarted to read it. The kernel counts starts in ticks of 10 ms: a process that started
// within 20 ms after the change counts as started before it. Missing files are skipped. For a
// process that is not visible, the result is false.
func StartedBefore(pid int, files ...string) bool {
	started, err := Started(pid)
	if err != nil {
		return false
	}
	started = started.Truncate(time.Second / ticks)
	return slices.ContainsFunc(files, func(file string) bool {
		info, err := os.Stat(file)
		return err == nil && !info.ModTime().Before(started)
	})
}

// IsDead reports whether a process was killed but still holds its resources: while one of its
// threads hangs in the kernel, its files stay open, its locks held and its sockets bound. A
// process that does not exist has released everything: it is not dead but gone.
//
// The kernel shows such a process as a zombie: its first thread has ended, which in a Go program
// means that the whole process has ended. If the first thread is the one that hangs, it has a
// pending SIGKILL, which the kernel also gives to all threads of a process that exits.
func IsDead(pid int) bool {
	fields, err := stat(pid)
	return err == nil && (fields[0][0] == 'Z' || fields[0][0] == 'X' || isKilled(pid))
}

// isKilled reports whether SIGKILL is pending for a process's first thread.
func isKilled(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(text), "\nSigPnd:")
	mask, _, _ := strings.Cut(after, "\n")
	pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}

// ticks is the number of ticks of a second in /proc, on every architecture of Linux that Go has.
const ticks = 100

// Started returns the time at which a process started, rounded down to a tick.
func Started(pid int) (time.Time, error) {
	since, err := StartTicks(pid)
	if err != nil {
		return time.Time{}, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Time{}, err
	}
	age := time.Duration(now.Nano()) - time.Duration(since)*(time.Second/ticks)
	return time.Now().Add(-age), nil
}

// StartTicks returns when a process started: the time since the machine's start, in ticks of 10 ms.
// With the PID it tells processes apart.
func StartTicks(pid int) (int64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	const start = 19 // the position of starttime, the 22nd field, after the name
	if len(fields) <= start {
		return 0, fmt.Errorf("process %d: the kernel does not tell when it started", pid)
	}
	return strconv.ParseInt(fields[start], 10, 64)
}

// stat returns what the kernel's line about a process contains after the process's name.
func stat(pid int) ([]string, error) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	line, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return nil, err
	}
	_, rest, found := bytes.Cut(line, []byte(") ")) // PID (NAME) STATE ...
	fields := strings.Fields(string(rest))
	if !found || len(fields) == 0 {
		return nil, fmt.Errorf("process %d: the kernel's line about it has no state", pid)
	}
	return fields, nil
}
