package catalog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Image is a manifest under a name.
type Image struct {
	N        int64  // number of the row
	Name     string // as wire.Ref.Name returns it
	Root     string // digest of what the name refers to: of the manifest, or of an index that lists it
	Digest   string // of the manifest
	Platform string
	State    string // wire.StateQueued, …
	Error    string
	Size     int64 // bytes of config and layers, as the manifest has them
	Updated  time.Time
	Pushed   time.Time // when the name was last pushed or added with this image

	// Only of ready images:
	Chain string
	Tree  chunk.ID
	Bytes int64 // of all files, plain
}

// States counts the images by their state.
func (c *Catalog) States(ctx context.Context) (map[string]int64, error) {
	return database.Map(ctx, c.db.Read, database.KeyValue[string, int64],
		`SELECT state, count(*) FROM images GROUP BY state`)
}

// Name makes a name refer to images, and removes the name's other images. An image that the name
// does not have yet gets the State that it has in images. An image that the name has keeps its
// state, except that a failed or stored one is queued if its State in images is wire.StateQueued.
// Name returns the images as they are now, in the same order.
//
// If the name then has pending images (queued or active ones), Name queues the job j, whose key is
// the name. Otherwise it cancels the open job of that kind and key.
func (c *Catalog) Name(ctx context.Context, name string, images []Image, j Job) (now []Image, err error) {
	return c.NameBy(ctx, Lease{}, name, images, j)
}

// NameBy is Name by the owner of a job about the name. The error is ErrLost if the owner has lost
// the job, or if the job was added again, or is to be paused or cancelled. The zero lease is that
// of a request: it is never lost.
func (c *Catalog) NameBy(
	ctx context.Context, l Lease, name string, images []Image, j Job,
) (now []Image, err error) {
	err = c.db.Update(ctx, "name image "+name, func(tx database.Session) error {
		if err := holdUnchanged(ctx, tx, l); err != nil {
			return err
		}
		if err := lockJob(ctx, tx, j.Kind, name); err != nil {
			return err
		}
		if now, err = nameImages(ctx, tx, name, images); err != nil {
			return err
		}
		if l == (Lease{}) { // a person has pushed or named it
			if err := wantByHand(ctx, tx, name); err != nil {
				return err
			}
		}
		pending, err := hasPending(ctx, tx, name)
		if err != nil {
			return err
		}
		if !pending {
			return cancelJob(ctx, tx, j.Kind, name)
		}
		_, err = addJob(ctx, tx, j, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.changes.Add(1)
	return now, nil
}

// NameAs is Name by the owner of the job that ingests the images. It neither queues nor cancels a
// job. The error is ErrLost if the owner has lost the job.
func (c *Catalog) NameAs(ctx context.Context, l Lease, name string, images []Image) error {
	err := c.db.Update(ctx, "name image "+name, func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		_, err := nameImages(ctx, tx, name, images)
		return err
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}

func nameImages(ctx context.Context, tx database.Session, name string, images []Image) ([]Image, error) {
	now, err := setImages(ctx, tx, name, images, `root = excluded.root, platform = excluded.platform`)
	if err != nil {
		return nil, err
	}
	args := []any{name}
	for _, image := range images {
		args = append(args, image.Digest)
	}
	return now, deleteImages(ctx, tx, ` AND digest NOT IN `+database.Places(1, len(args)-1), args...)
}

// maxOpenJobs bounds the open jobs of the kind that Expect queues.
const maxOpenJobs = 10_000

// Expect queues images of another registry, and the job j that fetches and ingests them. j.Key is
// their name, and source the repository that they come from. The name also refers to its previous
// images until the job calls NameAs. A ready image stays ready. Pending images of the name with
// another root fail with the reason superseded. Expect returns the images as they are now, in the
// same order, and the number of the job. The error is ErrFull if there are too many open jobs.
func (c *Catalog) Expect(
	ctx context.Context, images []Image, source, superseded string, j Job,
) (now []Image, job int64, err error) {
	name := j.Key
	err = c.db.Update(ctx, "queue image "+name, func(tx database.Session) error {
		open, err := database.Get(ctx, tx, database.Value[int],
			`SELECT COUNT(*) FROM jobs WHERE kind = ? AND `+openJob, j.Kind)
		if err != nil {
			return err
		}
		if open >= maxOpenJobs {
			return ErrFull
		}
		if err := lockJob(ctx, tx, j.Kind, name); err != nil {
			return err
		}
		if err := failSuperseded(ctx, tx, name, images, superseded); err != nil {
			return err
		}
		// An image that is not ready gets the new root, because the job ingests the images of that.
		if now, err = setImages(ctx, tx, name, images, `root =
			CASE WHEN images.state = '`+wire.StateReady+`' THEN images.root ELSE excluded.root END`); err != nil {
			return err
		}
		if err := addSource(ctx, tx, now, source); err != nil {
			return err
		}
		job, err = addJob(ctx, tx, j, 0)
		return err
	})
	return now, job, err
}

// Supersede makes the pending images of the name j.Key fail with a reason, except those of a root.
// If no image of the name is pending then, the open job of j's kind and key is cancelled.
func (c *Catalog) Supersede(ctx context.Context, j Job, root, reason string) error {
	return c.db.Update(ctx, "supersede image "+j.Key, func(tx database.Session) error {
		if err := lockJob(ctx, tx, j.Kind, j.Key); err != nil {
			return err
		}
		if err := failSuperseded(ctx, tx, j.Key, []Image{{Root: root}}, reason); err != nil {
			return err
		}
		pending, err := hasPending(ctx, tx, j.Key)
		if err != nil || pending {
			return err
		}
		return cancelJob(ctx, tx, j.Kind, j.Key)
	})
}

// failSuperseded makes the pending images of a name fail, except those with the root of images.
func failSuperseded(ctx context.Context, tx database.Session, name string, images []Image, reason string) error {
	args := []any{wire.StateFailed, reason, name, wire.StateQueued, wire.StateActive}
	others := ""
	if len(images) > 0 {
		args = append(args, images[0].Root)
		others = ` AND root <> ?`
	}
	return tx.Exec(ctx, `UPDATE images SET state = ?, error = ?, updated = `+tx.Clock+`
		WHERE name = ? AND state IN (?, ?)`+others,
		args...)
}

// Pending returns a pending image (a queued or active one) with a manifest: the one that is
// ingested first. The error is ErrNotFound if there is none.
func (c *Catalog) Pending(ctx context.Context, digest string) (Image, error) {
	images, err := c.images(ctx, `WHERE i.digest = ? AND i.state IN (?, ?) ORDER BY i.state, i.n LIMIT 1`, digest,
		wire.StateQueued, wire.StateActive) // active comes before queued
	if err == nil && len(images) == 0 {
		err = fmt.Errorf("no pending image has manifest %s: %w", digest, ErrNotFound)
	}
	if err != nil {
		return Image{}, err
	}
	return images[0], nil
}

// hasPending reports whether a name has pending images: queued or active ones.
func hasPending(ctx context.Context, tx database.Session, name string) (bool, error) {
	return database.Get(ctx, tx, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM images WHERE name = ? AND state IN (?, ?))`,
		name, wire.StateQueued, wire.StateActive)
}

// PendingNames returns the names that have pending images and no open job of a kind, with the roots
// of these images.
func (c *Catalog) PendingNames(ctx context.Context, kind string) (map[string]string, error) {
	return database.Map(ctx, c.db.Read, database.KeyValue[string, string],
		`SELECT name, root FROM images i WHERE state IN (?, ?)
		AND NOT EXISTS (SELECT 1 FROM jobs WHERE kind = ? AND key = i.name AND `+openJob+`)`,
		wire.StateQueued, wire.StateActive, kind)
}

// setImages adds images to a name. Of an image that the name has, it sets columns as renewed says
// (column = value, …), and queues the image again if that is wanted: see Name. It returns the
// images with their numbers and states.
func setImages(ctx context.Context, tx database.Session, name string, images []Image, renewed string) ([]Image, error) {
	images = slices.Clone(images)
	for i := range images {
		images[i].Name = name
		if err := setImage(ctx, tx, &images[i], renewed); err != nil {
			return nil, err
		}
	}
	return images, nil
}

func setImage(ctx context.Context, tx database.Session, image *Image, renewed string) error {
	n, err := reserve(ctx, tx, "images", 1)
	if err != nil {
		return err
	}
	if err := tx.Exec(ctx, `
		INSERT INTO images (n, name, root, digest, platform, state, error, size, updated, pushed)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, `+tx.Clock+`, `+tx.Clock+`)
		ON CONFLICT (name, digest) DO UPDATE SET pushed = excluded.pushed, `+renewed,
		n, image.Name, image.Root, image.Digest, image.Platform, image.State, image.Error, image.Size,
	); err != nil {
		return err
	}
	if image.State == wire.StateQueued {
		if err := tx.Exec(ctx, `
			UPDATE images SET state = ?, error = '', updated = `+tx.Clock+`
			WHERE name = ? AND digest = ? AND state IN (?, ?)`,
			wire.StateQueued, image.Name, image.Digest, wire.StateFailed, wire.StateStored); err != nil {
			return err
		}
	}
	now, err := database.Get(ctx, tx, func(i *Image) []any { return []any{&i.N, &i.State} },
		`SELECT n, state FROM images WHERE name = ? AND digest = ?`, image.Name, image.Digest)
	image.N, image.State = now.N, now.State
	return err
}

// Begin makes a pending image active. The error is ErrLost if the owner of the lease has lost its
// job, and ErrNotFound if the image was removed or is no longer pending.
func (c *Catalog) Begin(ctx context.Context, l Lease, n int64) error {
	return c.setState(ctx, l, n, wire.StateActive, "")
}

// End sets the state of a pending image: failed with a reason, or stored. Errors are those of
// Begin.
func (c *Catalog) End(ctx context.Context, l Lease, n int64, state, reason string) error {
	return c.setState(ctx, l, n, state, reason)
}

func (c *Catalog) setState(ctx context.Context, l Lease, n int64, state, reason string) error {
	return c.db.Update(ctx, fmt.Sprintf("set state of image %d", n), func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		return tx.Change(ctx, ErrNotFound, `UPDATE images SET state = ?, error = ?, updated = `+tx.Clock+` WHERE n = ?
			AND state IN (?, ?)`, state, reason, n, wire.StateQueued, wire.StateActive)
	})
}

// Images returns the images of a name, or all images if name is empty, sorted by name.
func (c *Catalog) Images(ctx context.Context, name string) ([]Image, error) {
	if name == "" {
		return c.images(ctx, byName)
	}
	return c.images(ctx, `WHERE i.name = ? `+byName, name)
}

// Known returns which of these names have images.
func (c *Catalog) Known(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var args []any
	for _, name := range names {
		args = append(args, name)
	}
	return database.List(ctx, c.db.Read, database.Value[string],
		`SELECT DISTINCT name FROM images WHERE name IN `+database.Places(1, len(names)), args...)
}

// Numbered returns the images with these numbers that still exist, each once.
func (c *Catalog) Numbered(ctx context.Context, numbers []int64) ([]Image, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	var args []any
	for _, n := range numbers {
		args = append(args, n)
	}
	return c.images(ctx, `WHERE i.n IN `+database.Places(1, len(numbers))+byName, args...)
}

const byName = ` ORDER BY i.name, i.platform, i.digest`

// images returns the images of table i that a query's clauses select.
func (c *Catalog) images(ctx context.Context, clauses string, args ...any) (images []Image, err error) {
	type row struct {
		Image
		tree database.Null[chunk.ID]
	}
	for r, err := range database.Rows(ctx, c.db.Read, func(r *row) []any {
		return []any{&r.N, &r.Name, &r.Root, &r.Digest, &r.Platform, &r.State, &r.Error, &r.Size,
			database.Stamp(&r.Updated), database.Stamp(&r.Pushed), &r.Chain, &r.tree, &r.Bytes}
	}, `SELECT i.n, i.name, i.root, i.digest, i.platform, i.state, i.error, i.size, i.updated, i.pushed,
			COALESCE(b.chain, ''), s.tree, COALESCE(t.bytes, 0)
		FROM images i
		LEFT JOIN image_blobs b ON b.image = i.n AND b.position >= 0
			AND b.position = (SELECT MAX(position) FROM image_blobs WHERE image = i.n)
		LEFT JOIN statements s ON s.chain = b.chain AND s.format = ?
		LEFT JOIN trees t ON t.tree = s.tree `+clauses, append([]any{index.Format}, args...)...) {
		if err != nil {
			return nil, err
		}
		r.Tree, r.Updated = r.tree.V, r.Updated.UTC()
		images = append(images, r.Image)
	}
	return images, nil
}

// Remove removes the images of a name. If digest is not empty, it removes only those with this
// digest or root. If no image of the name is pending then, the name's open job of that kind is
// cancelled.
func (c *Catalog) Remove(ctx context.Context, kind, name, digest string) error {
	return c.RemoveBy(ctx, Lease{}, kind, name, digest)
}

// RemoveBy is Remove by the owner of a job about the name. The lease and errors are as for NameBy.
func (c *Catalog) RemoveBy(ctx context.Context, l Lease, kind, name, digest string) error {
	condition, args := "", []any{name}
	if digest != "" {
		condition, args = ` AND (root = ? OR digest = ?)`, append(args, digest, digest)
	}
	err := c.db.Update(ctx, "remove image "+name, func(tx database.Session) error {
		if err := holdUnchanged(ctx, tx, l); err != nil {
			return err
		}
		if err := lockJob(ctx, tx, kind, name); err != nil {
			return err
		}
		if err := deleteImages(ctx, tx, condition, args...); err != nil {
			return err
		}
		if digest == "" {
			if err := forgetWants(ctx, tx, name); err != nil {
				return err
			}
		}
		pending, err := hasPending(ctx, tx, name)
		if err != nil || pending {
			return err
		}
		return cancelJob(ctx, tx, kind, name)
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}

// deleteImages deletes the images of a name that meet the condition. The name is the first of args.
func deleteImages(ctx context.Context, tx database.Session, condition string, args ...any) error {
	if err := noteRemoval(ctx, tx, condition, args...); err != nil {
		return err
	}
	if err := touchManifests(ctx, tx, condition, args...); err != nil {
		return err
	}
	return tx.Exec(ctx, `DELETE FROM images WHERE name = ?`+condition, args...)
}

// NamesIn returns the names in a repository that refer to a digest, as root or as manifest.
func (c *Catalog) NamesIn(ctx context.Context, repository, digest string) ([]string, error) {
	names, err := database.List(ctx, c.db.Read, database.Value[string],
		`SELECT DISTINCT name FROM images WHERE root = ? OR digest = ?`, digest, digest)
	return slices.DeleteFunc(names, func(name string) bool {
		ref, err := wire.ParseName(name)
		return err != nil || ref.Repository != repository
	}), err
}
