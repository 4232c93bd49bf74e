// Package rootdir names the files in the directory of a hub, and locks the directory while a hub
// runs there. The directory of a backup has files of the same names.
//
// To move a hub, move all of its directory. Without hub.key, nodes that have pinned the key refuse
// the hub.
//
// The files:
//
//	ROOT
//	├── registry      images as they were pushed or copied (distribution's layout),
//	│                 unless bucket is on S3
//	├── objects       packs, indexes, locations, layer records (package objects),
//	│                 unless bucket is set
//	├── catalog.db    the database (package catalog), unless catalog is set; with -wal and -shm
//	├── hub.key       the Ed25519 keys that sign statements, the oldest first (PEM, PKCS #8, 0600)
//	├── scratch       unfinished objects; emptied at each start. If bucket is another directory,
//	│                 scratch is in that directory, because objects are renamed
//	├── domains/NAME  the same files of another domain, except spare and lock
//	├── spare         bytes that are given up when the disk is full (package space)
//	└── lock          locked while a hub runs here; bucket.lock in the directory of the objects is
//	                  locked, too
package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"lighter/durable"
	"lighter/wire"
)

// LockName is the name of the file that is locked while a hub runs in its directory.
const LockName = "lock"

// Registry returns the directory of the registry's files.
func Registry(root string) string { return filepath.Join(root, "registry") }

// Objects returns the directory of the objects.
func Objects(root string) string { return filepath.Join(root, "objects") }

// Catalog returns the file of the SQLite catalog.
func Catalog(root string) string { return filepath.Join(root, "catalog.db") }

// Key returns the file of the signing keys.
func Key(root string) string { return filepath.Join(root, "hub.key") }

// Scratch returns the directory of unfinished objects. root may be the directory of a bucket.
func Scratch(root string) string { return filepath.Join(root, "scratch") }

// Spare returns the file of spare bytes.
func Spare(root string) string { return filepath.Join(root, "spare") }

// domainsDir returns the directory of the other domains.
func domainsDir(root string) string { return filepath.Join(root, "domains") }

// Domain returns the directory of a domain's files in a hub's directory. That of the default domain
// is the hub's directory itself.
func Domain(root, domain string) string {
	if domain == wire.DefaultDomain {
		return root
	}
	return filepath.Join(domainsDir(root), domain)
}

// Domains returns the domains that the directory of a hub or a backup has, the default domain
// first. It includes domains that the hub's configuration no longer has.
func Domains(root string) ([]string, error) {
	domains := []string{wire.DefaultDomain}
	entries, err := os.ReadDir(domainsDir(root))
	if errors.Is(err, fs.ErrNotExist) {
		return domains, nil
	}
	for _, entry := range entries {
		switch _, err := os.Stat(Catalog(Domain(root, entry.Name()))); {
		case err == nil:
			domains = append(domains, entry.Name())
		case !errors.Is(err, fs.ErrNotExist): // a domain without a catalog has never been opened
			return nil, err
		}
	}
	return domains, err
}

// WriteKey replaces the file of the signing keys durably. If root writes it, its owner is that of
// its directory, because the hub has to read it. Another user may not give files away, and may have
// got the directory through a group, as a pod gets its volume.
func WriteKey(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "hub.key-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename
	if os.Geteuid() == 0 {
		err = chownLike(file, filepath.Dir(path))
	}
	if err == nil {
		_, err = file.Write(text)
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return durable.Publish(file.Name(), path)
}

// chownLike gives a file the owner of a directory.
func chownLike(file *os.File, dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
