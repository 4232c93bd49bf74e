package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Among returns those of the keys that a publisher has claimed, or had claimed until its
// lease ended.
func (c *Claims) Among(ctx context.Context, keys []string) (map[string]bool, error) {
	claimed := map[string]bool{}
	for batch := range slices.Chunk(keys, lookupBatch) {
		args := make([]any, len(batch))
		for i, key := range batch {
			args[i] = key
		}
		some, err := list(ctx, c.read, value[string],
			`SELECT key FROM object_claims WHERE key IN `+places(1, len(batch)), args...)
		if err != nil {
			return nil, err
		}
		for _, key := range some {
			claimed[key] = true
		}
	}
	return claimed, nil
}

// Hold lets no publisher delete an object that the catalog knows now or later, for a lease.
// owner is a name of this backup only.
func (c *Claims) Hold(ctx context.Context, owner string, lease time.Duration) error {
	return c.update(ctx, "begin a backup", func(tx session) error {
		if err := exec(ctx, tx, `DELETE FROM backups WHERE until < `+tx.clock); err != nil {
			return err
		}
		return exec(ctx, tx, `INSERT INTO backups (owner, until) VALUES (?, `+tx.clock+` + ?)`, owner,
			lease.Milliseconds())
	})
}

// ExtendHold extends the lease of a backup. The error is ErrLost if it has ended: objects may have
// been deleted since.
func (c *Claims) ExtendHold(ctx context.Context, owner string, lease time.Duration) error {
	return c.update(ctx, "extend a backup", func(tx session) error {
		return change(ctx, tx, ErrLost, `UPDATE backups SET until = `+tx.clock+` + ?
			WHERE owner = ? AND until >= `+tx.clock, lease.Milliseconds(), owner)
	})
}

// EndHold ends a backup.
func (c *Claims) EndHold(ctx context.Context, owner string) error {
	return c.exec(ctx, "end a backup", `DELETE FROM backups WHERE owner = ?`, owner)
}

// IsHeld reports whether a backup is being made.
func (c *Claims) IsHeld(ctx context.Context) (bool, error) {
	return get(ctx, c.read, value[bool], `SELECT EXISTS (SELECT 1 FROM backups WHERE until >= `+c.read.clock+`)`)
}

// Snapshot writes a copy of an SQLite catalog, as it is now, to a new file. Others go on meanwhile.
func (c *Catalog) Snapshot(ctx context.Context, path string) error {
	if err := exec(ctx, c.write, `VACUUM INTO ?`, path); err != nil {
		return fmt.Errorf("copy the catalog: %w", err)
	}
	return nil
}

// Attach opens the catalog of a hub that may be running. source is as for Open. Unlike Open it
// makes and migrates nothing.
func Attach(ctx context.Context, source string) (*Catalog, error) {
	return AttachAt(ctx, Place{Source: source})
}

// AttachAt is Attach for a place.
func AttachAt(ctx context.Context, p Place) (*Catalog, error) {
	if !IsPostgres(p.Source) {
		_, err := os.Stat(p.Source)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open the catalog %s: no hub has made it yet: start the hub first: %w", p, err)
		}
		if err != nil {
			return nil, fmt.Errorf("open the catalog: %w", err)
		}
	}
	db, err := connect(p)
	if err != nil {
		return nil, fmt.Errorf("open the catalog %s: %w", p, mark(err))
	}
	c := newCatalog(db)
	what := ""
	if _, err = c.Claims.IsHeld(ctx); err == nil {
		err = refuseNewer(ctx, db.writing, db.write)
	} else if !errors.As(err, new(*databaseError)) {
		what = "no hub of this version has opened it yet: start the hub first: "
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the catalog %s: %s%w", p, what, mark(err)), c.Close())
	}
	return c, nil
}

// Disown ends all leases, claims and backups in a copy of a catalog: their owners work on the
// original.
func (c *Catalog) Disown(ctx context.Context) error {
	return c.update(ctx, "end the leases of a copied catalog", func(tx session) error {
		for _, statement := range []string{`UPDATE jobs SET lease = 0 WHERE state = 'running'`,
			`UPDATE object_claims SET until = 0`, `DELETE FROM backups`} {
			if err := exec(ctx, tx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
