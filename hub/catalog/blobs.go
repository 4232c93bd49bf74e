package catalog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog/database"
)

// Blobs has, for each blob, manifest and tag of the hub's registry, the time when a client last
// relied on it. So blobs that nothing names can be deleted while clients push: no client loses a
// blob that it has just found. Clients count as relying on an image's manifests when the image
// loses a name. A digest in its methods is that of a blob or manifest, or
// REPOSITORY:TAG for a tag. It is safe for concurrent use.
type Blobs struct{ db *database.DB }

// ErrDeleting means that a process is deleting a blob.
var ErrDeleting = errors.New("the blob is being deleted")

// Touch records that clients rely on blobs now: Begin does not let anybody delete them for a while.
// Touch writes nothing if each of them was touched within the last interval. The error is
// ErrDeleting if one of them is being deleted; the others may have been touched then.
func (b *Blobs) Touch(ctx context.Context, digests []string, interval time.Duration) error {
	digests = slices.Compact(slices.Sorted(slices.Values(digests))) // in one order: no deadlocks
	for batch := range slices.Chunk(digests, database.RowsPerInsert) {
		fresh, err := database.Get(ctx, b.db.Read, database.Value[int], `SELECT COUNT(*) FROM registry_blobs
			WHERE digest IN `+database.Places(1, len(batch))+` AND deleting = 0 AND touched > `+b.db.Read.Clock+` - ?`,
			append(anys(batch), interval.Milliseconds())...)
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

// touch records that clients rely on blobs now. There may be database.RowsPerInsert of them at
// most, each once. The error is ErrDeleting if one of them is being deleted.
func touch(ctx context.Context, tx database.Session, digests []string) error {
	if len(digests) == 0 {
		return nil
	}
	row := `(?, ` + tx.Clock + `, 0)`
	n, err := tx.ExecCount(ctx, `INSERT INTO registry_blobs (digest, touched, deleting) VALUES `+
		row+strings.Repeat(`, `+row, len(digests)-1)+`
		ON CONFLICT (digest) DO UPDATE SET touched = excluded.touched, deleting = 0
		WHERE registry_blobs.deleting < `+tx.Clock, anys(digests)...)
	if err == nil && n < int64(len(digests)) {
		return ErrDeleting
	}
	return err
}

// touchManifests records that clients rely on the manifests of some images, which lose their name
// now: a client may just have begun to pull them. They are the images of a name, the first of args,
// that meet the condition.
func touchManifests(ctx context.Context, tx database.Session, condition string, args ...any) error {
	of := ` FROM images WHERE name = ?` + condition
	return tx.Exec(ctx, `INSERT INTO registry_blobs (digest, touched, deleting)
		SELECT digest, `+tx.Clock+`, 0 FROM (SELECT digest`+of+` UNION SELECT root`+of+`) manifests
		WHERE TRUE ORDER BY digest
		ON CONFLICT (digest) DO UPDATE SET touched = excluded.touched`, append(args[:len(args):len(args)], args...)...)
}

// Touched returns the digests of the blobs, manifests and tags that were touched at or after a
// time.
func (b *Blobs) Touched(ctx context.Context, since time.Time) ([]string, error) {
	return database.List(ctx, b.db.Read, database.Value[string],
		`SELECT digest FROM registry_blobs WHERE touched >= ?`, since.UnixMilli())
}

// anys returns the arguments of database.Places.
func anys(values []string) (args []any) {
	for _, v := range values {
		args = append(args, v)
	}
	return args
}

// Now returns the database's time.
func (b *Blobs) Now(ctx context.Context) (time.Time, error) {
	return b.db.Now(ctx)
}

// Unused returns those of the blobs that BeginAll would let the caller delete now, except blobs
// without a row. It changes nothing.
func (b *Blobs) Unused(ctx context.Context, digests []string, before time.Time) ([]string, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	return database.List(ctx, b.db.Read, database.Value[string], `SELECT digest FROM registry_blobs
		WHERE digest IN `+database.Places(1, len(digests))+` AND touched < ? AND deleting < `+b.db.Read.Clock,
		append(anys(digests), before.UnixMilli())...)
}

// ErrSlow means that a deletion has taken too long. The same may succeed later, so it is marked as
// package away does.
var ErrSlow = away.New("the deletion took too long")

// Deletion is the right to delete some blobs. It lasts until Blobs.End, or for a lease.
type Deletion struct {
	digests []string  // sorted
	until   int64     // the end of the lease by the database's clock; no other deletion of the blobs has the same end
	limit   time.Time // the end of Do: after half of the lease, by the clock of this process
}

// Digests returns the blobs.
func (d Deletion) Digests() []string { return d.digests }

// nameBlobs returns the first of some blobs, and the number of the others.
func nameBlobs(digests []string) string {
	if len(digests) == 1 {
		return "blob " + digests[0]
	}
	return fmt.Sprintf("blob %s (+%d)", digests[0], len(digests)-1)
}

// Begin gives the caller the right to delete a blob, for a lease. may is false if a client has
// touched the blob at or after the time before, by the database's clock, or if another process is
// deleting the blob. A blob without a row gets one, as if a client touched it now. The caller calls
// Do and End.
func (b *Blobs) Begin(
	ctx context.Context, digest string, before time.Time, lease time.Duration,
) (d Deletion, may bool, err error) {
	d, err = b.BeginAll(ctx, []string{digest}, before, lease)
	return d, len(d.digests) > 0, err
}

// BeginAll is Begin for several blobs, a few hundred at most. The deletion is of those that may be
// deleted. If it is of none, the caller does not call Do.
func (b *Blobs) BeginAll(
	ctx context.Context, digests []string, before time.Time, lease time.Duration,
) (d Deletion, err error) {
	d.limit = time.Now().Add(lease / 2)
	digests = slices.Compact(slices.Sorted(slices.Values(digests))) // in the order of touch: no deadlocks
	if len(digests) == 0 {
		return d, nil
	}
	err = b.db.Update(ctx, "begin to delete "+nameBlobs(digests), func(tx database.Session) error {
		now, err := database.Get(ctx, tx, database.Value[int64], `SELECT `+tx.Clock)
		if err != nil {
			return err
		}
		d.until = now + lease.Milliseconds()
		fresh := int64(0) // deleting of a blob without a row
		if now < before.UnixMilli() {
			fresh = d.until
		}
		var args []any
		for _, digest := range digests {
			args = append(args, digest, now, fresh)
		}
		type row struct {
			digest   string
			deleting int64
		}
		rows, err := database.List(ctx, tx, func(r *row) []any { return []any{&r.digest, &r.deleting} },
			`INSERT INTO registry_blobs (digest, touched, deleting) VALUES `+
				database.Places(len(digests), 3)+`
			ON CONFLICT (digest) DO UPDATE SET deleting = ?
			WHERE registry_blobs.touched < ? AND registry_blobs.deleting < ? RETURNING digest, deleting`,
			append(args, d.until, before.UnixMilli(), now)...)
		d.digests = nil
		for _, r := range rows {
			if r.deleting == d.until {
				d.digests = append(d.digests, r.digest)
			}
		}
		slices.Sort(d.digests)
		return err
	})
	if err != nil {
		d.digests = nil
	}
	return d, err
}

// BeginAny is Begin for a blob that may be deleted however recently a client has touched it. may is
// false if another process is deleting the blob.
func (b *Blobs) BeginAny(ctx context.Context, digest string, lease time.Duration) (d Deletion, may bool, err error) {
	return b.Begin(ctx, digest, time.UnixMilli(math.MaxInt64), lease)
}

// Do calls fn, which deletes the blobs. The context of fn ends after half of the lease. If that
// time has passed already, Do does not call fn: this process was stopped for so long that clients
// may rely on the blobs again. Then, or if fn fails after that time, Do returns ErrSlow.
func (d Deletion) Do(ctx context.Context, fn func(context.Context) error) error {
	limited, cancel := context.WithDeadline(ctx, d.limit)
	defer cancel()
	err := limited.Err()
	if err == nil {
		err = fn(limited)
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil { // err only says that a file was not deleted in time
		return fmt.Errorf("delete %s: %w: %v", nameBlobs(d.digests), ErrSlow, err)
	}
	return err
}

// End ends a deletion. It does nothing about blobs that another process is deleting, because the
// lease has ended.
func (b *Blobs) End(ctx context.Context, d Deletion) error {
	if len(d.digests) == 0 {
		return nil
	}
	return b.db.Update(ctx, "end the deletion of "+nameBlobs(d.digests), func(tx database.Session) error {
		return tx.Exec(ctx, `UPDATE registry_blobs SET deleting = 0 WHERE digest IN (SELECT digest FROM registry_blobs
			WHERE digest IN `+database.Places(1, len(d.digests))+` AND deleting = ? ORDER BY digest`+tx.Lock+`)`,
			append(anys(d.digests), d.until)...)
	})
}

// Delete calls fn in Deletion.Do. Then it ends the deletion, also if ctx has ended.
func (b *Blobs) Delete(ctx context.Context, d Deletion, fn func(context.Context) error) error {
	err := d.Do(ctx, fn)
	ending, end := Outlast(ctx)
	defer end()
	return errors.Join(err, b.End(ending, d))
}

// DeleteDamaged is Delete of a damaged blob. The blob may be deleted
// however recently a client has touched it: the client would only find that it exists. No client
// relies on the blob while fn runs. DeleteDamaged does not call fn while a backup has a hold, or
// while another process is deleting the blob.
func (b *Blobs) DeleteDamaged(
	ctx context.Context, digest string, lease time.Duration, fn func(context.Context) error,
) error {
	held, err := (&Claims{b.db}).IsHeld(ctx)
	if err != nil || held {
		return err
	}
	d, may, err := b.BeginAny(ctx, digest, lease)
	if err != nil || !may {
		return err
	}
	return b.Delete(ctx, d, fn)
}

// Forget removes the rows of blobs that clients last touched before a time, unless they are being
// deleted.
func (b *Blobs) Forget(ctx context.Context, before time.Time) error {
	return b.db.Exec(ctx, "forget blobs",
		`DELETE FROM registry_blobs WHERE touched < ? AND deleting < `+b.db.Write.Clock,
		before.UnixMilli())
}

// RepositoryLayer is a layer of a repository of the hub's registry that a repository of another
// registry has, too.
type RepositoryLayer struct {
	Name string // AllUpstreams: of the hub's repository; SourceLayers: of an image in it
	Upstream
}

// AllUpstreams returns what Catalog.AddUpstreams has recorded, of all repositories.
func (c *Blobs) AllUpstreams(ctx context.Context) ([]RepositoryLayer, error) {
	return database.List(ctx, c.db.Read, func(l *RepositoryLayer) []any {
		return []any{&l.Name, &l.Repository, &l.PlainHTTP, &l.Digest, &l.Size}
	}, `SELECT repository, source, plain_http = 1, digest, size FROM upstream_blobs`)
}

// SourceLayers returns the layers of ready images, with the repositories of other registries from
// which the images were added.
func (c *Blobs) SourceLayers(ctx context.Context) ([]RepositoryLayer, error) {
	return database.List(ctx, c.db.Read, func(l *RepositoryLayer) []any {
		return []any{&l.Name, &l.Repository, &l.Digest, &l.Size}
	}, `SELECT i.name, s.repository, b.digest, b.size FROM image_sources s JOIN images i ON i.n = s.image
		JOIN image_blobs b ON b.image = i.n WHERE b.position >= 0`)
}

// OfImage returns the digests of an image's config and layers, as far as the catalog knows them:
// those of a ready image. exists reports whether the image still has a state.
func (c *Blobs) OfImage(ctx context.Context, n int64, state string) (digests []string, exists bool, err error) {
	exists, err = database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM images WHERE n = ? AND state = ?)`, n, state)
	if err == nil && exists {
		digests, err = database.List(ctx, c.db.Read, database.Value[string],
			`SELECT digest FROM image_blobs WHERE image = ?`, n)
	}
	return digests, exists, err
}

// RemoveUpstreams removes what Catalog.AddUpstreams has recorded of layers of repositories.
func (c *Blobs) RemoveUpstreams(ctx context.Context, layers []RepositoryLayer) error {
	if len(layers) == 0 {
		return nil
	}
	return c.db.Update(ctx, "remove upstream layers", func(tx database.Session) error {
		for _, l := range layers {
			if err := tx.Exec(ctx, `DELETE FROM upstream_blobs WHERE repository = ? AND digest = ?`,
				l.Name, l.Digest); err != nil {
				return fmt.Errorf("layer %s of %s: %w", l.Digest, l.Name, err)
			}
		}
		return nil
	})
}
