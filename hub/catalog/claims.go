package catalog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog/database"
)

// Claim is a publisher's right to store and delete certain objects. Nobody else has that right for
// the same objects until the claim is released, or its lease has ended. The objects of a claim that
// was not released may be unpublished: Expired finds them.
type Claim struct {
	Owner string // of this claim only
	Keys  []string
}

// Claims are the claims of objects. They are safe for concurrent use.
type Claims struct{ db *database.DB }

// ErrClaimed means that another publisher stores or deletes one of the objects.
var ErrClaimed = errors.New("another publication has claimed its objects")

// Acquire claims objects for a lease, or returns ErrClaimed.
func (c *Claims) Acquire(ctx context.Context, claim Claim, lease time.Duration) error {
	return c.db.Update(ctx, "claim objects", func(tx database.Session) error {
		for batch := range slices.Chunk(claim.Keys, database.RowsPerInsert) {
			var args []any
			for _, key := range batch {
				args = append(args, key, claim.Owner, lease.Milliseconds())
			}
			row := `(?, ?, ` + tx.Clock + ` + ?)`
			n, err := tx.ExecCount(ctx, `INSERT INTO object_claims (key, owner, until) VALUES `+
				row+strings.Repeat(`, `+row, len(batch)-1)+`
				ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until
				WHERE object_claims.until < `+tx.Clock, args...)
			if err != nil {
				return err
			}
			if n < int64(len(batch)) {
				return ErrClaimed
			}
		}
		return nil
	})
}

// Extend extends the lease of a claim, or returns ErrLost.
func (c *Claims) Extend(ctx context.Context, claim Claim, lease time.Duration) error {
	return c.db.Update(ctx, "extend a claim of objects", func(tx database.Session) error {
		n, err := tx.ExecCount(ctx, `UPDATE object_claims SET until = `+tx.Clock+` + ? WHERE owner = ?`,
			lease.Milliseconds(), claim.Owner)
		return claim.check(n, err)
	})
}

// check returns ErrLost if a statement has found fewer objects than the claim has.
func (claim Claim) check(found int64, err error) error {
	if err == nil && found < int64(len(claim.Keys)) {
		return ErrLost
	}
	return err
}

// holdClaim returns ErrLost if a claim was lost. Otherwise nobody else can get it before the
// transaction ends.
func holdClaim(ctx context.Context, tx database.Session, claim Claim) error {
	n, err := tx.ExecCount(ctx, `UPDATE object_claims SET owner = owner WHERE owner = ?`, claim.Owner)
	return claim.check(n, err)
}

// Release ends a claim. Its published objects are known, and the others are deleted.
func (c *Claims) Release(ctx context.Context, claim Claim) error {
	return c.db.Exec(ctx, "release a claim of objects", `DELETE FROM object_claims WHERE owner = ?`, claim.Owner)
}

// Expired gives owner a claim of at most limit objects whose claims have expired. If ended is
// not empty, the claims of owners whose names begin with it count as expired, too.
func (c *Claims) Expired(
	ctx context.Context, owner, ended string, lease time.Duration, limit int,
) (claim Claim, err error) {
	condition, args := `until < `+c.db.Write.Clock, []any{owner, lease.Milliseconds()}
	if ended != "" {
		condition, args = condition+` OR substr(owner, 1, ?) = ?`, append(args, len(ended), ended)
	}
	err = c.db.Update(ctx, "find expired claims of objects", func(tx database.Session) error {
		keys, err := database.List(ctx, tx, database.Value[string],
			`UPDATE object_claims SET owner = ?, until = `+tx.Clock+` + ?
			WHERE key IN (SELECT key FROM object_claims WHERE `+condition+` ORDER BY key LIMIT ?`+tx.Skip+`)
			RETURNING key`, append(args, limit)...)
		claim = Claim{owner, keys}
		return err
	})
	return claim, err
}
