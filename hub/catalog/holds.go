package catalog

import (
	"context"
	"time"

	"lighter/hub/catalog/database"
)

// Hold begins the hold of a backup, for a lease: until it ends, nobody deletes an object that the
// catalog names now or at any time of the hold. owner is a name of this backup only.
func (c *Claims) Hold(ctx context.Context, owner string, lease time.Duration) error {
	return c.db.Update(ctx, "begin a backup", func(tx database.Session) error {
		if err := tx.Exec(ctx, `DELETE FROM backups WHERE until < `+tx.Clock); err != nil {
			return err
		}
		return tx.Exec(ctx, `INSERT INTO backups (owner, until) VALUES (?, `+tx.Clock+` + ?)`, owner,
			lease.Milliseconds())
	})
}

// ExtendHold extends the lease of a hold. The error is ErrLost if the hold has ended: objects may
// have been deleted since.
func (c *Claims) ExtendHold(ctx context.Context, owner string, lease time.Duration) error {
	return c.db.Update(ctx, "extend a backup", func(tx database.Session) error {
		return tx.Change(ctx, ErrLost, `UPDATE backups SET until = `+tx.Clock+` + ?
			WHERE owner = ? AND until >= `+tx.Clock, lease.Milliseconds(), owner)
	})
}

// EndHold ends a hold.
func (c *Claims) EndHold(ctx context.Context, owner string) error {
	return c.db.Exec(ctx, "end a backup", `DELETE FROM backups WHERE owner = ?`, owner)
}

// IsHeld reports whether a backup has a hold.
func (c *Claims) IsHeld(ctx context.Context) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM backups WHERE until >= `+c.db.Read.Clock+`)`)
}

// Disown ends all leases of jobs, claims and holds in a copy of a catalog: their owners work on the
// original. It also gives all holders time to report: those whose last reports only the original
// got must not expire in the copy before they report to it.
func (c *Catalog) Disown(ctx context.Context) error {
	return c.db.Update(ctx, "end the leases of a copied catalog", func(tx database.Session) error {
		for _, statement := range []string{`UPDATE jobs SET lease = 0 WHERE state = 'running'`,
			`UPDATE object_claims SET until = 0`, `DELETE FROM backups`,
			`UPDATE meta SET value = '0' WHERE name = 'serving'`} {
			if err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
