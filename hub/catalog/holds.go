package catalog

import (
	"context"
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
		some, err := list(ctx, c.read, value[string], `SELECT key FROM object_claims WHERE key IN `+places(1, len(batch)),
			args...)
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
