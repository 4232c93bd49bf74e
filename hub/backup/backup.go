// Package backup copies a hub to a directory and makes a hub of such a copy. It works beside a
// running hub, and without one.
//
// It promises that a complete backup has every object that its catalog names. While it copies a
// domain, it has a hold in the domain's catalog, so the hub deletes nothing there. If the hold is
// lost, the backup fails. WhileHeld gives such holds to scripts that copy PostgreSQL and S3 with
// other tools.
//
// A backup replaces an earlier backup of the same hub, and refuses to touch a directory that has
// anything else. It needs SQLite catalogs and a directory of objects. Its directory has the layout
// of a hub's directory (package rootdir), and one more file:
//
//	DIR
//	├── backup.json   which hub it is of, when it began, and its size; an incomplete backup
//	│                 does not have it
//	├── catalog.db    a snapshot of the catalog
//	├── objects       the objects that the snapshot names
//	├── registry      the files of the registry
//	├── hub.key       the signing keys (0600)
//	└── domains/NAME  the same files of another domain, except backup.json
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/rootdir"
	"lighter/wire"
)

// backupFile is the name of the last file that a backup writes.
const backupFile = "backup.json"

// Result describes a backup.
type Result struct {
	Hub     string    `json:"hub"`     // the hub's identity (catalog.HubID); older backups have none
	Root    string    `json:"root"`    // the hub's directory
	Time    time.Time `json:"time"`    // when the backup began
	Objects int64     `json:"objects"` // number of objects
	Copied  int64     `json:"copied"`  // those that were copied; an earlier backup there had the others
}

// Make copies the hub in root to the directory dir, with all its domains, whether the hub runs or
// not. An earlier backup of the hub in dir is replaced. Its objects are not copied again. If root
// and dir are on one file system, objects become hard links. show gets the progress of copying the
// objects of each domain.
func Make(ctx context.Context, root, dir string, show func(wire.Progress)) (r Result, err error) {
	if err := checkDirectory(root, dir); err != nil {
		return r, fmt.Errorf("back up %s to %s: %w", root, dir, err)
	}
	r.Time = time.Now().UTC()
	r.Root, err = filepath.Abs(root)
	if err == nil {
		r.Hub, err = hubID(ctx, root)
	}
	if err == nil {
		err = checkSameHub(r.Hub, root, dir)
	}
	if err != nil {
		return r, fmt.Errorf("back up %s to %s: %w", root, dir, err)
	}
	domains, err := rootdir.Domains(root)
	if err != nil {
		return r, fmt.Errorf("back up %s: %w", root, err)
	}
	for _, domain := range domains {
		from, to := rootdir.Domain(root, domain), rootdir.Domain(dir, domain)
		one, err := backupDomain(ctx, from, to, func(bytes, total int64) {
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

// backupDomain copies the domain in a directory to another one.
func backupDomain(ctx context.Context, root, dir string, show func(bytes, total int64)) (r Result, err error) {
	c, err := catalog.Attach(ctx, rootdir.Catalog(root))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := durable.MkdirAll(dir); err != nil {
		return r, err
	}
	err = whileHeld(ctx, c, func(ctx context.Context) error {
		r, err = copyDomain(ctx, c, root, dir, show)
		return err
	})
	return r, err
}

func copyDomain(
	ctx context.Context, c *catalog.Catalog, root, dir string, show func(bytes, total int64),
) (r Result, err error) {
	snapshot := rootdir.Catalog(dir) + ".new"
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
	r = Result{Objects: int64(len(keys))}
	bytes := int64(0)
	for key := range keys {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		from, to := filepath.Join(rootdir.Objects(root), key), filepath.Join(rootdir.Objects(dir), key)
		copied, err := copyFile(from, to, true)
		if err != nil {
			return r, fmt.Errorf("%w (lighter fsck --repair makes lost objects again)", err)
		}
		if copied {
			r.Copied++
		}
		if info, err := os.Stat(to); err == nil {
			bytes += info.Size()
		}
		show(min(bytes, total), total)
	}
	if err := copyRegistry(ctx, rootdir.Registry(root), rootdir.Registry(dir)); err != nil {
		return r, err
	}
	key, err := os.ReadFile(rootdir.Key(root))
	if err != nil {
		return r, err
	}
	if err := rootdir.WriteKey(rootdir.Key(dir), key); err != nil {
		return r, err
	}
	for _, suffix := range []string{"-wal", "-shm"} { // SQLite made them when the snapshot was read
		if err := os.RemoveAll(snapshot + suffix); err != nil {
			return r, err
		}
	}
	// All files that the catalog names are on the disk before the catalog gets its name. This
	// includes files that an earlier backup copied before it was killed.
	if err := durable.SyncTree(dir); err != nil {
		return r, err
	}
	if err := durable.Publish(snapshot, rootdir.Catalog(dir)); err != nil {
		return r, err
	}
	return r, prune(rootdir.Objects(dir), keys)
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

// Restore makes the directory of a hub from a backup. The directory must be empty, or not exist.
func Restore(ctx context.Context, dir, root string) error {
	if err := restore(ctx, dir, root); err != nil {
		return fmt.Errorf("restore %s to %s: %w", dir, root, err)
	}
	return nil
}

func restore(ctx context.Context, dir, root string) error {
	if _, err := os.Stat(filepath.Join(dir, backupFile)); err != nil {
		return fmt.Errorf("the backup is not complete: %w", err)
	}
	if has, err := os.ReadDir(root); err == nil && len(has) > 0 {
		return fmt.Errorf("%s is not empty: choose another directory, or empty it", root)
	}
	domains, err := rootdir.Domains(dir)
	if err != nil {
		return err
	}
	for _, domain := range domains {
		if err := restoreDomain(ctx, rootdir.Domain(dir, domain), rootdir.Domain(root, domain)); err != nil {
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
	key, err := os.ReadFile(rootdir.Key(dir))
	if err != nil {
		return err
	}
	if err := rootdir.WriteKey(rootdir.Key(root), key); err != nil {
		return err
	}
	if _, err = copyFile(rootdir.Catalog(dir), rootdir.Catalog(root), false); err != nil {
		return err
	}
	c, err := catalog.Attach(ctx, rootdir.Catalog(root))
	if err != nil {
		return err
	}
	return errors.Join(c.Disown(ctx), c.Close(), durable.SyncTree(root))
}
