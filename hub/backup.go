package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/sleep"
	"lighter/wire"
)

// The files of a backup:
//
//	DIR
//	├── backup.json   when it was complete, and its size; a backup without it is not complete
//	├── catalog.db    a snapshot of the catalog
//	├── objects       the objects that the snapshot names
//	├── registry      the files of the registry
//	├── hub.key       the signing keys (0600)
//	└── domains/NAME  the same of another domain, but for backup.json
//
// It has the layout of a hub's directory.
const backupFile = "backup.json"

// BackupResult is the size of a backup.
type BackupResult struct {
	Time    time.Time `json:"time"`
	Objects int64     `json:"objects"`
	Copied  int64     `json:"copied"` // of Objects; an earlier backup in the directory had the others
}

// backupLease is how long the hub deletes nothing after a backup has been killed.
const backupLease = 2 * time.Minute

// Backup copies a hub with SQLite catalogs and a directory of objects to another directory, with
// all its domains, whether the hub runs or not. An earlier backup there is replaced: what it has is
// not copied again. Until the backup has ended, the hub deletes no objects. On one file system,
// objects become hard links. show gets the progress of copying the objects of each domain.
func Backup(ctx context.Context, root, dir string, show func(wire.Progress)) (r BackupResult, err error) {
	if err := checkBackupDir(root, dir); err != nil {
		return r, fmt.Errorf("back up %s to %s: %w", root, dir, err)
	}
	domains, err := domainsIn(root)
	if err != nil {
		return r, fmt.Errorf("back up %s: %w", root, err)
	}
	r.Time = time.Now().UTC()
	for _, domain := range domains {
		one, err := backupDomain(ctx, DomainRoot(root, domain), DomainRoot(dir, domain), func(bytes, total int64) {
			show(wire.Progress{Step: "copy", Item: domain, Bytes: bytes, Total: total})
		})
		if err != nil {
			return r, fmt.Errorf("back up domain %s of %s: %w", domain, root, err)
		}
		r.Objects, r.Copied = r.Objects+one.Objects, r.Copied+one.Copied
	}
	text, err := json.Marshal(r)
	if err != nil {
		return r, err
	}
	return r, durable.Replace(filepath.Join(dir, backupFile), append(text, '\n'))
}

// domainsIn returns the domains that the directory of a hub or a backup has, the default one first,
// also those that the hub does not have any more.
func domainsIn(root string) ([]string, error) {
	domains := []string{wire.DefaultDomain}
	entries, err := os.ReadDir(domainsDir(root))
	if errors.Is(err, fs.ErrNotExist) {
		return domains, nil
	}
	for _, entry := range entries {
		switch _, err := os.Stat(catalogFile(DomainRoot(root, entry.Name()))); {
		case err == nil:
			domains = append(domains, entry.Name())
		case !errors.Is(err, fs.ErrNotExist): // a domain without a catalog has never been opened
			return nil, err
		}
	}
	return domains, err
}

// backupDomain copies the domain in a directory to another one.
func backupDomain(ctx context.Context, root, dir string, show func(bytes, total int64)) (r BackupResult, err error) {
	c, err := catalog.Attach(ctx, catalogFile(root))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := durable.MkdirAll(dir); err != nil {
		return r, err
	}
	err = whileHeld(ctx, c, func(ctx context.Context) error {
		r, err = backup(ctx, c, root, dir, show)
		return err
	})
	return r, err
}

// whileHeld calls fn while the hub deletes no objects. fn fails if that right is lost.
func whileHeld(ctx context.Context, c *catalog.Catalog, fn func(ctx context.Context) error) error {
	owner := rand.Text()
	if err := c.Claims.Hold(ctx, owner, backupLease); err != nil {
		return err
	}
	extend := func(ctx context.Context) error {
		err := c.Claims.ExtendHold(ctx, owner, backupLease)
		if errors.Is(err, catalog.ErrLost) {
			err = fmt.Errorf("the hub may have deleted objects meanwhile, try again: %w", err)
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep.For(ctx, backupLease/6) {
			if err := extend(ctx); errors.Is(err, catalog.ErrLost) {
				cancel(err)
				return
			}
		}
	}()
	err := fn(ctx)
	if err == nil { // what was copied was held until now
		err = extend(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	<-done
	return errors.Join(err, c.Claims.EndHold(context.WithoutCancel(ctx), owner))
}

func backup(
	ctx context.Context, c *catalog.Catalog, root, dir string, show func(bytes, total int64),
) (r BackupResult, err error) {
	snapshot := catalogFile(dir) + ".new"
	if err := os.RemoveAll(snapshot); err != nil {
		return r, err
	}
	if err := c.Snapshot(ctx, snapshot); err != nil {
		return r, err
	}
	named, err := catalog.Attach(ctx, snapshot)
	if err != nil {
		return r, err
	}
	keys, err := objectKeys(ctx, named)
	_, total, totalErr := named.Checks.ObjectBytes(ctx) // without the layer records, which are small
	if err := errors.Join(err, totalErr, named.Close()); err != nil {
		return r, err
	}
	r = BackupResult{Objects: int64(len(keys))}
	bytes := int64(0)
	for key := range keys {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		copied, err := copyFile(filepath.Join(objectsDir(root), key), filepath.Join(objectsDir(dir), key), true)
		if err != nil {
			return r, fmt.Errorf("%w (lighter fsck --repair makes lost objects again)", err)
		}
		if copied {
			r.Copied++
		}
		if info, err := os.Stat(filepath.Join(objectsDir(dir), key)); err == nil {
			bytes += info.Size()
		}
		show(min(bytes, total), total)
	}
	// Links come before the blobs that they name.
	const v2 = "docker/registry/v2"
	from, to := registryDir(root), registryDir(dir)
	for _, part := range []string{v2 + "/repositories", v2 + "/blobs"} {
		if err := copyTree(ctx, filepath.Join(from, part), filepath.Join(to, part)); err != nil {
			return r, err
		}
	}
	key, err := os.ReadFile(keyFile(root))
	if err != nil {
		return r, err
	}
	if err := writeKeyFile(keyFile(dir), key); err != nil {
		return r, err
	}
	for _, kind := range []string{"-wal", "-shm"} { // of the snapshot's inspection
		if err := os.RemoveAll(snapshot + kind); err != nil {
			return r, err
		}
	}
	// The catalog's name comes after those of all files that it names, also of those that an
	// earlier backup has copied before it was killed.
	if err := durable.SyncTree(dir); err != nil {
		return r, err
	}
	if err := durable.Publish(snapshot, catalogFile(dir)); err != nil {
		return r, err
	}
	return r, prune(objectsDir(dir), keys)
}

// objectKeys returns the keys of the objects that a catalog names.
func objectKeys(ctx context.Context, c *catalog.Catalog) (map[string]bool, error) {
	keys := map[string]bool{}
	for kind, key := range map[catalog.ObjectKind]func(chunk.ID) string{
		catalog.Indexes: objects.IndexKey, catalog.Locations: objects.LocationsKey, catalog.Packs: objects.PackKey,
		catalog.Records: func(id chunk.ID) string { return objects.LayerKey(id.String()) },
	} {
		const batch = 1000
		for after := (chunk.ID{}); ; {
			some, err := c.Checks.Objects(ctx, kind, after, batch)
			if err != nil {
				return nil, err
			}
			for _, o := range some {
				keys[key(o.ID)] = true
				after = o.ID
			}
			if len(some) < batch {
				break
			}
		}
	}
	return keys, nil
}

// copyFile copies a file, unless the file never changes and the destination has it: a file of the
// same size that is not older. An older one may be damaged, and the file repaired since. copyFile
// reports whether it has copied. Files that never change become hard links, if that is possible.
func copyFile(from, to string, immutable bool) (copied bool, err error) {
	source, err := os.Stat(from)
	if err != nil {
		return false, err
	}
	if has, err := os.Stat(to); immutable && err == nil && has.Size() == source.Size() &&
		!has.ModTime().Before(source.ModTime()) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return false, err
	}
	temporary := to + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = syscall.EXDEV
	if immutable {
		err = os.Link(from, temporary)
	}
	if err != nil {
		err = copyBytes(from, temporary)
	}
	if err == nil {
		err = os.Rename(temporary, to)
	}
	return err == nil, err
}

func copyBytes(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Sync(), w.Close())
}

// copyTree copies the files of a registry below a directory, except unfinished uploads. The bytes
// of blobs never change.
func copyTree(ctx context.Context, from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			return nil
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "_uploads":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		_, err = copyFile(path, filepath.Join(to, strings.TrimPrefix(path, from)), d.Name() == "data")
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return err
}

// prune removes the objects that are not among the keys.
func prune(dir string, keys map[string]bool) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || keys[strings.TrimPrefix(path, dir+"/")] {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return os.Remove(path)
	})
}

// Restore makes the directory of a hub from a backup. The directory must be empty, or not exist.
func Restore(ctx context.Context, dir, root string) error {
	if err := restore(ctx, dir, root); err != nil {
		return fmt.Errorf("restore %s to %s: %w", dir, root, err)
	}
	return nil
}

func restore(ctx context.Context, dir, root string) error {
	if _, err := os.Stat(filepath.Join(dir, backupFile)); err != nil {
		return fmt.Errorf("it is no complete backup: %w", err)
	}
	if has, err := os.ReadDir(root); err == nil && len(has) > 0 {
		return errors.New("the directory is not empty: choose another one, or empty it")
	}
	domains, err := domainsIn(dir)
	if err != nil {
		return err
	}
	for _, domain := range domains {
		if err := restoreDomain(ctx, DomainRoot(dir, domain), DomainRoot(root, domain)); err != nil {
			return fmt.Errorf("domain %s: %w", domain, err)
		}
	}
	return nil
}

// restoreDomain makes the directory of a domain from a backup of it.
func restoreDomain(ctx context.Context, dir, root string) error {
	for _, part := range []string{"objects", "registry"} {
		immutable := part == "objects"
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil || d.IsDir() {
				return err
			}
			_, err = copyFile(path, filepath.Join(root, strings.TrimPrefix(path, dir)), immutable || d.Name() == "data")
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := durable.MkdirAll(root); err != nil {
		return err
	}
	key, err := os.ReadFile(keyFile(dir))
	if err != nil {
		return err
	}
	if err := writeKeyFile(keyFile(root), key); err != nil {
		return err
	}
	if _, err = copyFile(catalogFile(dir), catalogFile(root), false); err != nil {
		return err
	}
	c, err := catalog.Attach(ctx, catalogFile(root))
	if err != nil {
		return err
	}
	return errors.Join(c.Disown(ctx), c.Close(), durable.SyncTree(root))
}
