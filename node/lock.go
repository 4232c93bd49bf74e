package node

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

// errInUse says that another daemon runs with a root.
var errInUse = errors.New("in use by another lighter node")

// deadTimeout is how long a process that was killed may take to end before it
// counts as one that hangs.
const deadTimeout = time.Second

// lockRoot makes sure that no other daemon uses root, as long as the file that it
// returns is open.
//
// A daemon that was killed may hold its lock still: if one of its threads was
// unmounting a tree, it hangs in the kernel until somebody answers what was read of
// that tree, which is its successor's to do. So the lock of a process that is
// dead is taken from it: then it is inherited.
func lockRoot(root string, leftovers *durable.Leftovers) (lock *os.File, inherited bool, err error) {
	// One at a time: of two that find a dead one, the second finds the first.
	dir, err := os.Open(root)
	if err != nil {
		return nil, false, fmt.Errorf("open the node's root: %w", err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, false, fmt.Errorf("lock the node's root: %w", err)
	}
	path := filepath.Join(root, "lock")
	lock, err = tryLock(path, leftovers)
	for end := time.Now().Add(deadTimeout); errors.Is(err, unix.EWOULDBLOCK) && isDead(path); lock, err = tryLock(path, leftovers) {
		if time.Now().Before(end) {
			time.Sleep(10 * time.Millisecond) // it may be just ending
			continue
		}
		if err := inherit(root); err != nil {
			return nil, false, fmt.Errorf("take the locks of a daemon that was killed: %w", err)
		}
		inherited = true
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, fmt.Errorf("%s is %w: stop it, or give this one another --root", root, errInUse)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open the node's root: %w", err)
	}
	return lock, inherited, nil
}

// inherit puts other files in the place of those that a dead daemon holds locked
// (package disk's lock, and bbolt's), and of its own lock.
func inherit(root string) error {
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
	return errors.Join(err, os.Remove(filepath.Join(root, "lock")))
}

// tryLock locks a file and says in it who has: the process and its PID namespace,
// without which the number says nothing. On a full disk it says nothing: then nobody
// takes the lock from this process if it is killed and hangs.
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

// writeWhole writes a text to an empty file, or leaves it empty.
func writeWhole(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	if err != nil {
		err = errors.Join(fmt.Errorf("say who holds the lock: %w", err), file.Truncate(0))
	}
	return err
}

// isDead tells whether the process that holds the lock is dead. It has written who
// it is while nobody else could look (lockRoot); and as long as it holds the lock,
// the kernel gives its number to nobody else. A process that cannot be seen from
// here is taken for alive.
func isDead(lock string) bool {
	text, err := os.ReadFile(lock)
	if err != nil {
		return false
	}
	number, namespace, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(number)
	return err == nil && namespace != "" && namespace == pidNamespace() && proc.IsDead(pid)
}

// pidNamespace names the PID namespace of this process, or returns "" if /proc
// cannot say who has a number there: it may be another one's.
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
