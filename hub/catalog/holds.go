package catalog

import (
	"context"
	"slices"
	"time"

	"lighter/hub/catalog/database"
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
		some, err := database.List(ctx, c.db.Read, database.Value[string],
			`SELECT key FROM object_claims WHERE key IN `+database.Places(1, len(batch)), args...)
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
	return c.db.Update(ctx, "begin a backup", func(tx database.Session) error {
		if err := tx.Exec(ctx, `DELETE FROM backups WHERE until < `+tx.Clock); err != nil {
			return err
		}
		return tx.Exec(ctx, `INSERT INTO backups (owner, until) VALUES (?, `+tx.Clock+` + ?)`, owner,
			lease.Milliseconds())
	})
}

// ExtendHold extends the lease of a backup. The error is ErrLost if it has ended: objects may have
// been deleted since.
func (c *Claims) ExtendHold(ctx context.Context, owner string, lease time.Duration) error {
	return c.db.Update(ctx, "extend a backup", func(tx database.Session) error {
		return tx.Change(ctx, ErrLost, `UPDATE backups SET until = `+tx.Clock+` + ?
			WHERE owner = ? AND until >= `+tx.Clock, lease.Milliseconds(), owner)
	})
}

// EndHold ends a backup.
func (c *Claims) EndHold(ctx context.Context, owner string) error {
	return c.db.Exec(ctx, "end a backup", `DELETE FROM backups WHERE owner = ?`, owner)
}

// IsHeld reports whether a backup is being made.
func (c *Claims) IsHeld(ctx context.Context) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM backups WHERE until >= `+c.db.Read.Clock+`)`)
}

// Disown ends all leases, claims and backups in a copy of a catalog: their owners work on the
// original.
func (c *Catalog) Disown(ctx context.Context) error {
	return c.db.Update(ctx, "end the leases of a copied catalog", func(tx database.Session) error {
		for _, statement := range []string{`UPDATE jobs SET lease = 0 WHERE state = 'running'`,
			`UPDATE object_claims SET until = 0`, `DELETE FROM backups`} {
			if err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
