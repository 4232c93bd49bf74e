package catalog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog/database"
)

// Blobs says when clients last relied on manifests and blobs of the hub's registry, so that those
// that nothing names can be deleted beside pushes. The digest of a tag, which can be touched and
// deleted, too, is REPOSITORY:TAG. It is safe for concurrent use.
type Blobs struct{ db *database.DB }

// ErrDeleting means that a process is deleting a blob.
var ErrDeleting = errors.New("it is being deleted")

// Touch notes that clients rely on blobs, unless that was noted within the last interval. Then
// Begin lets nobody delete them for a while. The error is ErrDeleting if one of them is being
// deleted; then nothing is noted.
func (b *Blobs) Touch(ctx context.Context, digests []string, interval time.Duration) error {
	digests = slices.Compact(slices.Sorted(slices.Values(digests))) // in one order: no deadlocks
	for batch := range slices.Chunk(digests, database.RowsPerInsert) {
		var args []any
		for _, d := range batch {
			args = append(args, d)
		}
		fresh, err := database.Get(ctx, b.db.Read, database.Value[int], `SELECT COUNT(*) FROM registry_blobs
			WHERE digest IN `+database.Places(1, len(batch))+` AND deleting = 0 AND touched > `+b.db.Read.Clock+` - ?`,
			append(args, interval.Milliseconds())...)
		if err != nil {
			return err
		}
		if fresh == len(batch) {
			continue
		}
		if err := b.db.Update(ctx, "note the use of blobs", func(tx database.Session) error {
			return touch(ctx, tx, batch)
		}); err != nil {
			return err
		}
	}
	return nil
}

// touch notes that clients rely on blobs, at most database.RowsPerInsert.
func touch(ctx context.Context, tx database.Session, digests []string) error {
	if len(digests) == 0 {
		return nil
	}
	var args []any
	for _, d := range digests {
		args = append(args, d)
	}
	row := `(?, ` + tx.Clock + `, 0)`
	n, err := tx.ExecCount(ctx, `INSERT INTO registry_blobs (digest, touched, deleting) VALUES `+
		row+strings.Repeat(`, `+row, len(digests)-1)+`
		ON CONFLICT (digest) DO UPDATE SET touched = excluded.touched, deleting = 0
		WHERE registry_blobs.deleting < `+tx.Clock, args...)
	if err == nil && n < int64(len(digests)) {
		return ErrDeleting
	}
	return err
}

// Now returns the database's time.
func (b *Blobs) Now(ctx context.Context) (time.Time, error) {
	return b.db.Now(ctx)
}

// IsUnused reports whether Begin would allow to delete a blob now.
func (b *Blobs) IsUnused(ctx context.Context, digest string, before time.Time) (bool, error) {
	return database.Get(ctx, b.db.Read, database.Value[bool], `SELECT EXISTS (SELECT 1 FROM registry_blobs
		WHERE digest = ? AND touched < ? AND deleting < `+b.db.Read.Clock+`)`, digest, before.UnixMilli())
}

// Deletion is the right to delete a blob. It lasts until Blobs.End, or for a lease.
type Deletion struct {
	digest string
	until  int64     // the end of the lease by the database's clock, which no other deletion of the blob has
	limit  time.Time // half of the lease by the clock of this process
}

// Begin begins to delete a blob for a lease, and reports whether the caller may do that: nobody has
// touched the blob since a time of the database's clock. A blob that is not known counts as touched
// now. The caller calls Do and End.
func (b *Blobs) Begin(
	ctx context.Context, digest string, before time.Time, lease time.Duration,
) (d Deletion, may bool, err error) {
	d = Deletion{digest: digest, limit: time.Now().Add(lease / 2)}
	err = b.db.Update(ctx, "begin to delete blob "+digest, func(tx database.Session) error {
		if err := tx.Exec(ctx, `INSERT INTO registry_blobs (digest, touched, deleting) VALUES (?, `+tx.Clock+`, 0)
			ON CONFLICT (digest) DO NOTHING`, digest); err != nil {
			return err
		}
		d.until, err = database.Get(ctx, tx, database.Value[int64],
			`UPDATE registry_blobs SET deleting = `+tx.Clock+` + ?
			WHERE digest = ? AND touched < ? AND deleting < `+tx.Clock+` RETURNING deleting`,
			lease.Milliseconds(), digest, before.UnixMilli())
		if may = err == nil; errors.Is(err, ErrNotFound) {
			err = nil
		}
		return err
	})
	return d, may && err == nil, err
}

// BeginAny is Begin for a blob that may be deleted whenever it was touched. It reports false if
// another process is deleting the blob.
func (b *Blobs) BeginAny(ctx context.Context, digest string, lease time.Duration) (d Deletion, may bool, err error) {
	return b.Begin(ctx, digest, time.UnixMilli(math.MaxInt64), lease)
}

// Do calls fn, which deletes the blob, with a context that ends with half of the lease. If that has
// ended already, it returns an error: the process was stopped, and clients may rely on the blob
// again.
func (d Deletion) Do(ctx context.Context, fn func(context.Context) error) error {
	limited, cancel := context.WithDeadline(ctx, d.limit)
	defer cancel()
	if err := limited.Err(); err != nil {
		return fmt.Errorf("delete %s: this process has lost the right to do it: %w", d.digest, err)
	}
	return fn(limited)
}

// End ends the deletion of a blob. It does nothing if the lease has ended and another process is
// deleting the blob.
func (b *Blobs) End(ctx context.Context, d Deletion) error {
	return b.db.Exec(ctx, "end the deletion of blob "+d.digest,
		`UPDATE registry_blobs SET deleting = 0 WHERE digest = ? AND deleting = ?`, d.digest, d.until)
}

// Forget forgets the blobs that were last touched before a time.
func (b *Blobs) Forget(ctx context.Context, before time.Time) error {
	return b.db.Exec(ctx, "forget blobs",
		`DELETE FROM registry_blobs WHERE touched < ? AND deleting < `+b.db.Write.Clock,
		before.UnixMilli())
}

// RepositoryLayer is a layer that a repository of the hub's registry has at a source.
type RepositoryLayer struct {
	Name string // of an image in the repository, or of the repository if it is a row of AddUpstreams
	Upstream
}

// AllUpstreams returns the rows of AddUpstreams, for all repositories.
func (c *Blobs) AllUpstreams(ctx context.Context) ([]RepositoryLayer, error) {
	return database.List(ctx, c.db.Read, func(l *RepositoryLayer) []any {
		return []any{&l.Name, &l.Repository, &l.PlainHTTP, &l.Digest, &l.Size}
	}, `SELECT repository, source, plain_http = 1, digest, size FROM upstream_blobs`)
}

// SourceLayers returns the layers of ready images with the repositories that the images were added
// from.
func (c *Blobs) SourceLayers(ctx context.Context) ([]RepositoryLayer, error) {
	return database.List(ctx, c.db.Read, func(l *RepositoryLayer) []any {
		return []any{&l.Name, &l.Repository, &l.Digest, &l.Size}
	}, `SELECT i.name, s.repository, b.digest, b.size FROM image_sources s JOIN images i ON i.n = s.image
		JOIN image_blobs b ON b.image = i.n WHERE b.position >= 0`)
}

// RemoveUpstreams removes what AddUpstreams has recorded of a layer of a repository.
func (c *Blobs) RemoveUpstreams(ctx context.Context, repository, digest string) error {
	return c.db.Exec(ctx, fmt.Sprintf("remove upstream layer %s of %s", digest, repository),
		`DELETE FROM upstream_blobs WHERE repository = ? AND digest = ?`, repository, digest)
}
