package hub

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"lighter/hub/registry"
	"lighter/hub/space"
)

// The files of a hub:
//
//	ROOT
//	├── registry      images as they were pushed or copied (distribution's layout),
//	│                 unless bucket is on S3
//	├── objects       packs, indexes, locations, layer records (package objects),
//	│                 unless bucket is set
//	├── catalog.db    the database (package catalog), unless catalog is set; with -wal and -shm
//	├── hub.key       the Ed25519 keys that sign statements, the oldest first (PEM, PKCS #8, 0600)
//	├── scratch       unfinished objects; emptied at each start. If bucket is another directory,
//	│                 scratch is in that, since objects are renamed
//	├── domains/NAME  the same files of another domain, but for spare and lock
//	├── spare         bytes that are given up when the disk is full (package space)
//	└── lock          locked while a hub runs here; if bucket is another directory, that has
//	                  bucket.lock
//
// To move a hub, move all of it. Without hub.key, nodes that have pinned the key refuse the hub.
func registryDir(root string) string { return filepath.Join(root, "registry") }
func objectsDir(root string) string  { return filepath.Join(root, "objects") }
func catalogFile(root string) string { return filepath.Join(root, "catalog.db") }
func keyFile(root string) string     { return filepath.Join(root, "hub.key") }
func scratchDir(root string) string  { return filepath.Join(root, "scratch") }
func domainsDir(root string) string  { return filepath.Join(root, "domains") }
func lockFile(root string) string    { return filepath.Join(root, "lock") }
func bucketLock(dir string) string   { return filepath.Join(dir, "bucket.lock") }
func spareFile(root string) string   { return filepath.Join(root, "spare") }

// rootLock is the locked file of a hub's directory.
type rootLock struct{ *os.File }

// Close unlocks the directory. Closing the file does not suffice: a child process has it, too, from
// its fork until its exec.
func (l rootLock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// prepareRoot makes the directories and locks the hub's directory. Closing the lock, or the end of
// the process, unlocks it.
func prepareRoot(root string) (lock rootLock, err error) {
	for _, dir := range []string{root, registryDir(root)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return lock, fmt.Errorf("make the hub's directory: %w", err)
		}
	}
	lock, err = newLock(lockFile(root))
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return lock, fmt.Errorf("another hub runs in %s: end it, or choose another directory with --root", root)
	}
	return lock, err
}

// newLock makes and locks a file. If another process has locked it, the error is EWOULDBLOCK.
func newLock(path string) (lock rootLock, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return lock, fmt.Errorf("lock the hub's directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // it has no data
		return lock, fmt.Errorf("lock %s: %w", path, err)
	}
	return rootLock{file}, nil
}

// lockBucket locks the directory that is the bucket of a hub with SQLite, if bucket is set: hubs
// with catalogs of their own must not share a bucket. Otherwise it returns nil.
func (c *Config) lockBucket() (io.Closer, error) {
	u, err := url.Parse(c.Bucket)
	if err != nil || u.Scheme != "file" || c.Catalog != "" {
		return nil, nil
	}
	if err := os.MkdirAll(u.Path, 0o700); err != nil {
		return nil, fmt.Errorf("make the bucket: %w", err)
	}
	lock, err := newLock(bucketLock(u.Path))
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another hub uses the bucket %s: end it, or set another bucket: each of two hubs with "+
			"catalogs of their own would delete what the other has stored", c.Bucket)
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// soleOwner is the name under which a hub with SQLite runs jobs: its catalogs are in its directory,
// so no other process has them.
const soleOwner = "hub"

// owner returns the name under which the hub in a locked directory runs jobs and claims objects. No
// running process has the same: it names the locked file, and the boot of the machine. So the next
// process in the directory can end what the previous one has begun, and one in a copy of the
// directory cannot.
func (c *Config) owner(lock rootLock) (string, error) {
	if c.Catalog == "" {
		return soleOwner, nil
	}
	info, err := lock.Stat()
	if err != nil {
		return "", fmt.Errorf("name the hub's process: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil { // nothing that an earlier process has begun is ended before its lease
		return rand.Text(), nil
	}
	file := info.Sys().(*syscall.Stat_t)
	sum := sha256.Sum256(fmt.Appendf(boot, "%d %d", file.Dev, file.Ino))
	return hex.EncodeToString(sum[:16]), nil
}

// registryStorage returns where the registry keeps its files: in the bucket if that is S3,
// otherwise below the hub's directory.
func (c *Config) registryStorage() registry.Storage {
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "s3" {
		return registry.S3(u)
	}
	return registry.Dir(registryDir(c.Root))
}

// dirs returns the directories in which the hub writes.
func (c *Config) dirs() []space.Dir {
	dirs := []space.Dir{{Name: "root", Path: c.Root}, {Name: "scratch", Path: c.scratch()}}
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "s3" {
		return dirs
	}
	objects := objectsDir(c.Root)
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "file" {
		objects = u.Path
	}
	return append(dirs,
		space.Dir{Name: "objects", Path: objects},
		space.Dir{Name: "registry", Path: registryDir(c.Root)})
}

// scratch returns the directory of unfinished objects.
func (c *Config) scratch() string {
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "file" {
		return scratchDir(u.Path)
	}
	return scratchDir(c.Root)
}

func (c *Config) prepareScratch() (string, error) {
	dir := c.scratch()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the hub's scratch space: %w", err)
	}
	return dir, nil
}
