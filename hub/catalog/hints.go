package catalog

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"lighter/hub/catalog/database"
)

// Hint says that an image of another registry may have changed. It is kept until a look there is
// queued. Hints about the same image count as one.
type Hint struct {
	Hook       string // the name of the hook that has got it
	Repository string // of the hook's registry
	Reference  string // a tag or a digest; empty: every name that the hub has of the repository

	Serial int64 // how often the hint has come
}

// Hints has the hints that the hub has accepted. It is safe for concurrent use.
type Hints struct{ db *database.DB }

// Add stores hints, in one transaction.
func (c *Hints) Add(ctx context.Context, hints []Hint) error {
	hints = slices.Clone(hints)
	// Transactions that insert the same rows in another order would wait for each other.
	slices.SortFunc(hints, func(a, b Hint) int {
		return cmp.Or(strings.Compare(a.Hook, b.Hook), strings.Compare(a.Repository, b.Repository),
			strings.Compare(a.Reference, b.Reference))
	})
	hints = slices.Compact(hints)
	return c.db.Update(ctx, "store hints", func(tx database.Session) error {
		for batch := range slices.Chunk(hints, database.RowsPerInsert) {
			var args []any
			for _, h := range batch {
				args = append(args, h.Hook, h.Repository, h.Reference)
			}
			row := `(?, ?, ?, 1, ` + tx.Clock + `)`
			if err := tx.Exec(ctx, `INSERT INTO hints (hook, repository, reference, serial, since) VALUES `+
				row+strings.Repeat(`, `+row, len(batch)-1)+`
				ON CONFLICT (hook, repository, reference) DO UPDATE SET serial = hints.serial + 1`, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// Of returns at most limit hints of a hook, the oldest first.
func (c *Hints) Of(ctx context.Context, hook string, limit int) ([]Hint, error) {
	return database.List(ctx, c.db.Read, func(h *Hint) []any {
		return []any{&h.Hook, &h.Repository, &h.Reference, &h.Serial}
	}, `SELECT hook, repository, reference, serial FROM hints WHERE hook = ? ORDER BY since LIMIT ?`, hook, limit)
}

// Looked removes hints when looks are queued, unless they have come again since they were read.
func (c *Hints) Looked(ctx context.Context, hints []Hint) error {
	return c.db.Update(ctx, "remove hints", func(tx database.Session) error {
		for _, h := range hints {
			if err := tx.Exec(ctx, `DELETE FROM hints WHERE hook = ? AND repository = ? AND reference = ? AND serial = ?`,
				h.Hook, h.Repository, h.Reference, h.Serial); err != nil {
				return err
			}
		}
		return nil
	})
}

// Count counts the hints by hook.
func (c *Hints) Count(ctx context.Context) (map[string]int64, error) {
	return database.Map(ctx, c.db.Read, database.KeyValue[string, int64],
		`SELECT hook, COUNT(*) FROM hints GROUP BY hook`)
}

// NamesOf returns at most limit names of images of a repository that have a digest, as root or as
// manifest; if digest is empty, all its names. repository is as wire.Ref.NamedRepository returns
// it.
func (c *Hints) NamesOf(ctx context.Context, repository, digest string, limit int) ([]string, error) {
	condition, args := `substr(name, 1, ?) IN (?, ?)`, []any{len(repository) + 1, repository + ":", repository + "@"}
	if digest != "" {
		condition, args = condition+` AND (root = ? OR digest = ?)`, append(args, digest, digest)
	}
	return database.List(ctx, c.db.Read, database.Value[string],
		`SELECT DISTINCT name FROM images WHERE `+condition+` ORDER BY name LIMIT ?`, append(args, limit)...)
}
