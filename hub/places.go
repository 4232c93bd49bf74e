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
	"syscall"

	"lighter/hub/registry"
	"lighter/hub/rootdir"
	"lighter/hub/space"
)

// lockBucket locks the bucket of a domain of a hub with SQLite if the bucket is a directory, set in
// the configuration or not: hubs with catalogs of their own must not share a bucket. Otherwise it
// returns nil.
func (c *Config) lockBucket() (io.Closer, error) {
	bucket, err := c.bucketURL()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(bucket)
	if err != nil || u.Scheme != "file" {
		return nil, nil
	}
	if err := os.MkdirAll(u.Path, 0o700); err != nil {
		return nil, fmt.Errorf("make the bucket: %w", err)
	}
	lock, err := rootdir.LockBucket(u.Path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another hub uses the bucket %s: end it, or set another bucket: each of two hubs with "+
			"catalogs of their own would delete what the other has stored", bucket)
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
// other running process with the same catalogs has this name, which is made from the locked file
// and the boot of the machine. So the next process in the directory can end what the previous one
// has begun, and a process in a copy of the directory cannot.
func (c *Config) owner(lock rootdir.Lock) (string, error) {
	if c.Catalog == "" {
		return soleOwner, nil
	}
	info, err := lock.Stat()
	if err != nil {
		return "", fmt.Errorf("name the hub's process: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil { // jobs and claims of an earlier process then last as long as their leases
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
	return registry.Dir(rootdir.Registry(c.Root))
}

// dirs returns the directories in which the hub writes.
func (c *Config) dirs() []space.Dir {
	dirs := []space.Dir{{Name: "root", Path: c.Root}, {Name: "scratch", Path: c.scratch()}}
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "s3" {
		return dirs
	}
	objects := rootdir.Objects(c.Root)
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "file" {
		objects = u.Path
	}
	return append(dirs,
		space.Dir{Name: "objects", Path: objects},
		space.Dir{Name: "registry", Path: rootdir.Registry(c.Root)})
}

// scratch returns the directory of unfinished objects.
func (c *Config) scratch() string {
	if u, err := url.Parse(c.Bucket); err == nil && u.Scheme == "file" {
		return rootdir.Scratch(u.Path)
	}
	return rootdir.Scratch(c.Root)
}

func (c *Config) prepareScratch() (string, error) {
	dir := c.scratch()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the hub's scratch space: %w", err)
	}
	return dir, nil
}
