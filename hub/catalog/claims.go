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
// the same objects until the claim is released, or its lease has ended. If a claim was not
// released, its objects may be stored although no row names them: Expired finds such claims.
type Claim struct {
	Owner string // of this claim only
	Keys  []string
}

// Claims has the claims of objects, and the holds of backups. It is safe for concurrent use.
type Claims struct{ db *database.DB }

// ErrClaimed means that another publisher stores or deletes one of the objects.
var ErrClaimed = errors.New("another publisher has claimed one of the objects")

// ErrClaimLost wraps ErrLost: the lease of a claim of objects has ended, not that of a job. Package
// away counts it as an error of a store, so that a job whose claim was lost runs again.
var ErrClaimLost error = claimLost{}

type claimLost struct{}

func (claimLost) Error() string { return "the lease of a claim of objects has ended" }
func (claimLost) Unwrap() error { return ErrLost }
func (claimLost) Away() bool    { return true }

// Acquire claims objects for a lease. The error is ErrClaimed if another publisher has claimed one
// of them; then none is claimed.
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

// Extend extends the lease of a claim. The error is ErrClaimLost if the claim no longer has all of
// its objects: another publisher has claimed one since the lease ended, say.
func (c *Claims) Extend(ctx context.Context, claim Claim, lease time.Duration) error {
	return c.db.Update(ctx, "extend a claim of objects", func(tx database.Session) error {
		n, err := tx.ExecCount(ctx, `UPDATE object_claims SET until = `+tx.Clock+` + ? WHERE owner = ?`,
			lease.Milliseconds(), claim.Owner)
		return claim.check(n, err)
	})
}

// check returns ErrClaimLost if a statement has found fewer objects than the claim has.
func (claim Claim) check(found int64, err error) error {
	if err == nil && found < int64(len(claim.Keys)) {
		return ErrClaimLost
	}
	return err
}

// holdClaim returns ErrClaimLost if a claim was lost. Otherwise nobody else can claim its objects
// before the transaction ends.
func holdClaim(ctx context.Context, tx database.Session, claim Claim) error {
	n, err := tx.ExecCount(ctx, `UPDATE object_claims SET owner = owner WHERE owner = ?`, claim.Owner)
	return claim.check(n, err)
}

// Release ends a claim. The catalog names the objects that were published. The publisher has
// deleted the others, or leaves them to a sweep.
func (c *Claims) Release(ctx context.Context, claim Claim) error {
	return c.db.Exec(ctx, "release a claim of objects", `DELETE FROM object_claims WHERE owner = ?`, claim.Owner)
}

// Expired finds at most limit objects whose claims have expired, and gives owner a claim of them.
// If ended is not empty, the claims of owners whose names begin with it count as expired, too:
// their process has ended.
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

// Among returns which of the keys are claimed. A claim that was not released counts even if its
// lease has ended.
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
