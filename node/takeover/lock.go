package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/proc"
)

// ErrInUse says that another daemon uses the root.
var ErrInUse = errors.New("in use by another lighter node")

// killTimeout is how long a killed process may take to release the lock. After that it counts as
// hanging in the kernel.
const killTimeout = time.Second

// LockFile returns the path of the file that a daemon keeps locked.
func LockFile(root string) string { return filepath.Join(root, "lock") }

// Lock makes sure that no other daemon uses root while the returned file is open.
//
// A killed daemon may still hold its lock: if one of its threads was unmounting a tree, this thread
// hangs in the kernel until the tree's reads are answered. Only the next daemon can answer them. So
// Lock takes the lock from a dead process. In that case inherited is true.
func Lock(root string, leftovers *durable.Leftovers) (lock *os.File, inherited bool, err error) {
	// Daemons that start at the same time wait here for each other. Only the first one takes the
	// lock from a dead daemon. The second one then finds that the first one has it.
	dir, err := os.Open(root)
	if err != nil {
		return nil, false, fmt.Errorf("open the node's root: %w", err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, false, fmt.Errorf("lock the node's root: %w", err)
	}
	path := LockFile(root)
	for end := time.Now().Add(killTimeout); ; {
		lock, err = tryLock(path, leftovers)
		switch {
		case err == nil:
			return lock, inherited, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, false, fmt.Errorf("open the node's root: %w", err)
		case !isDead(path):
			return nil, false, fmt.Errorf("%s is %w: stop that node, or give this node another --root", root, ErrInUse)
		case time.Now().Before(end):
			time.Sleep(10 * time.Millisecond) // the dead process may be about to release the lock
			continue
		}
		if err := replaceLocks(root); err != nil {
			return nil, false, fmt.Errorf("take the locks of a daemon that was killed: %w", err)
		}
		inherited = true
	}
}

// replaceLocks replaces the files that a dead daemon holds locked: the cache's lock, the snapshots'
// database (bbolt locks it), and the daemon's own lock.
func replaceLocks(root string) error {
	if err := os.Remove(filepath.Join(root, "cache", "lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := filepath.Join(root, "snapshots", "metadata.db")
	snapshots, err := os.ReadFile(path)
	switch {
	case err == nil:
		err = durable.Replace(path, snapshots)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	return errors.Join(err, os.Remove(LockFile(root)))
}

// tryLock locks a file and writes its holder into the file: the PID and the PID namespace, without
// which the PID has no meaning. On a full disk the file stays empty. Then no later daemon can take
// the lock from this process if it is killed and hangs.
func tryLock(path string, leftovers *durable.Leftovers) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		leftovers.Note(path, writeWhole(lock, fmt.Sprintf("%d %s", os.Getpid(), pidNamespace())))
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// writeWhole writes a text to an empty file. If it fails, the file stays empty.
func writeWhole(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	if err != nil {
		err = errors.Join(fmt.Errorf("write the holder of the lock: %w", err), file.Truncate(0))
	}
	return err
}

// isDead reports whether the process that holds the lock is dead. The PID in the file is that of
// the holder: the holder wrote it while no other daemon could read the file (Lock), and the kernel
// does not reuse the PID before the lock is released. A process in another PID namespace counts as
// alive.
func isDead(lock string) bool {
	text, err := os.ReadFile(lock)
	if err != nil {
		return false
	}
	number, namespace, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(number)
	return err == nil && namespace != "" && namespace == pidNamespace() && proc.IsDead(pid)
}

// pidNamespace returns the name of this process's PID namespace, or "" if /proc is that of another
// namespace.
func pidNamespace() string {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return ""
	}
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}
