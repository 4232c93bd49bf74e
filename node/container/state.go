package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/node/bundle"
	"lighter/node/mount"
)

// deleteTimeout bounds how long a runtime may take to end a container and to delete it.
const deleteTimeout = time.Minute

// state is the directory with a directory for each container.
type state struct {
	dir  string
	warn func(string)
}

// home is one container's directory. It has
//
//	bundle/    the bundle
//	engine     the path of the OCI runtime
//	engine.d/  the runtime's state
//	log        the runtime's log
//
// It is locked while the container's `lighter run` lives.
type home struct {
	dir  string
	lock *os.File
}

func (h home) name() string      { return filepath.Base(h.dir) }
func (h home) bundle() string    { return filepath.Join(h.dir, "bundle") }
func (h home) engine() string    { return filepath.Join(h.dir, "engine") }
func (h home) engineDir() string { return filepath.Join(h.dir, "engine.d") }
func (h home) log() string       { return filepath.Join(h.dir, "log") }

// open removes what killed processes have left, and makes a locked directory for a container. An
// empty name stands for a random one.
func (s state) open(ctx context.Context, name, engine string) (home, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return home{}, fmt.Errorf("make the directory of containers: %w", err)
	}
	left, err := s.stale(ctx)
	if err != nil {
		return home{}, fmt.Errorf("directory of containers: %w", err)
	}
	for _, h := range left {
		if err := s.remove(ctx, h); err != nil {
			s.warn(fmt.Sprintf("cannot remove what container %s, which was killed, has left: %v", h.name(), err))
		}
		h.lock.Close()
	}
	if name == "" {
		name = randomName()
	}
	h, err := s.make(ctx, name)
	if err != nil {
		return h, fmt.Errorf("make the directory of container %s: %w", name, err)
	}
	if err := os.WriteFile(h.engine(), []byte(engine), 0o600); err != nil {
		return h, errors.Join(err, s.close(ctx, h))
	}
	return h, nil
}

// lockAll locks the directory of containers until unlock is called. While it is locked, no process
// makes a container's directory, or locks one.
func (s state) lockAll(ctx context.Context) (unlock func(), err error) {
	if unlock, err = durable.LockDir(ctx, s.dir); err != nil {
		return nil, fmt.Errorf("wait for another container to start: %w", err)
	}
	return unlock, nil
}

// stale returns the directories of containers whose `lighter run` is dead, and locks them. If the
// directory of containers has something else, or others may write to it, nothing there is touched:
// what stale returns is removed, with a program that is named there.
func (s state) stale(ctx context.Context) (left []home, err error) {
	if err := s.checkOwner(); err != nil {
		return nil, err
	}
	unlock, err := s.lockAll(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if path := filepath.Join(s.dir, entry.Name()); !isHome(path) {
			return nil, fmt.Errorf("%s is no container's: give --state a directory for containers alone", path)
		}
	}
	for _, entry := range entries {
		h, err := lock(filepath.Join(s.dir, entry.Name()))
		if err == nil {
			left = append(left, h)
		} // an error means that it is in use, or has just been removed
	}
	return left, nil
}

// checkOwner returns an error if other users may write to the directory of containers.
func (s state) checkOwner() error {
	info, err := os.Stat(s.dir)
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user (%d): give --state a directory of your own", s.dir, owner)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("other users may write to %s: chmod go-w it first", s.dir)
	}
	return nil
}

// isHome reports whether a path is a container's directory: it has nothing else. It may also be
// gone by now.
func isHome(path string) bool {
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return errors.Is(err, os.ErrNotExist)
	}
	entries, err := os.ReadDir(path)
	h := home{dir: path}
	parts := []string{h.bundle(), h.engine(), h.engineDir(), h.log()}
	return (err == nil || errors.Is(err, os.ErrNotExist)) && !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return !slices.Contains(parts, filepath.Join(path, e.Name()))
	})
}

// lock locks a container's directory, unless another process has locked it.
func lock(dir string) (home, error) {
	file, err := os.Open(dir)
	if err != nil {
		return home{}, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return home{}, errors.Join(err, file.Close())
	}
	return home{dir: dir, lock: file}, nil
}

// make makes and locks the directory of a new container.
func (s state) make(ctx context.Context, name string) (home, error) {
	unlock, err := s.lockAll(ctx)
	if err != nil {
		return home{}, err
	}
	defer unlock()
	dir := filepath.Join(s.dir, name)
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return home{}, errors.New("a container of that name runs, or could not be removed: choose another --name")
	}
	if err != nil {
		return home{}, err
	}
	return lock(dir)
}

// close removes a container's directory and unlocks it.
func (s state) close(ctx context.Context, h home) error {
	return errors.Join(s.remove(ctx, h), h.lock.Close())
}

// remove ends a container, unless it has ended, and removes its mounts and its directory.
func (s state) remove(ctx context.Context, h home) error {
	if err := h.delete(ctx); err != nil {
		return err
	}
	if err := bundle.Remove(ctx, h.bundle()); err != nil && !errors.Is(err, bundle.ErrNotBundle) {
		return err
	}
	points, err := mount.Points(h.dir)
	if err == nil && len(points) > 0 {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(h.dir)
}

// delete makes the runtime end the container and delete it, if the runtime knows it.
func (h home) delete(ctx context.Context) error {
	if !h.isKnown() {
		return nil
	}
	engine, err := os.ReadFile(h.engine())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, string(engine), "--root", h.engineDir(), "delete", "--force",
		h.name()).CombinedOutput()
	// A runtime that still runs deletes the container, too, as soon as its process has ended. runc
	// 1.1 reports success although the process runs.
	if h.isKnown() {
		err = cmp.Or(err, errors.New("its process still runs"))
		return fmt.Errorf("delete container %s with %s: %w: %s", h.name(), engine, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// isKnown reports whether the runtime knows the container.
func (h home) isKnown() bool {
	_, err := os.Stat(filepath.Join(h.engineDir(), h.name()))
	return !errors.Is(err, os.ErrNotExist)
}
