package hub

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"lighter/durable"
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
//	├── owner         the name under which this hub runs jobs
//	├── domains/NAME  the same files of another domain, but for lock
//	└── lock          locked while a hub runs here
//
// To move a hub, move all of it. Without hub.key, nodes that have pinned the key refuse the hub.
func registryDir(root string) string { return filepath.Join(root, "registry") }
func objectsDir(root string) string  { return filepath.Join(root, "objects") }
func catalogFile(root string) string { return filepath.Join(root, "catalog.db") }
func keyFile(root string) string     { return filepath.Join(root, "hub.key") }
func scratchDir(root string) string  { return filepath.Join(root, "scratch") }
func domainsDir(root string) string  { return filepath.Join(root, "domains") }
func ownerFile(root string) string   { return filepath.Join(root, "owner") }
func lockFile(root string) string    { return filepath.Join(root, "lock") }

// rootLock is the locked file of a hub's directory.
type rootLock struct{ *os.File }

// Close unlocks the directory. Closing the file does not suffice: a child process has it, too, from
// its fork until its exec.
func (l rootLock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// prepareRoot makes the directories and locks the hub's directory. Closing the lock, or the end of
// the process, unlocks it.
func prepareRoot(root string) (lock io.Closer, err error) {
	for _, dir := range []string{root, registryDir(root)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the hub's directory: %w", err)
		}
	}
	file, err := os.OpenFile(lockFile(root), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the hub's directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // it has no data
		return nil, fmt.Errorf("another hub runs in %s: end it, or choose another directory with --root", root)
	}
	return rootLock{file}, nil
}

// owner returns the name under which the hub in a directory runs jobs. It is random, and made at
// the first start.
func owner(root string) (string, error) {
	b, err := os.ReadFile(ownerFile(root))
	if errors.Is(err, fs.ErrNotExist) {
		b = []byte(rand.Text())
		err = durable.Replace(ownerFile(root), b)
	}
	if err != nil {
		return "", fmt.Errorf("name the hub's process: %w", err)
	}
	return string(b), nil
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
