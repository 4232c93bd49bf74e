package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// Image is a manifest under a name.
type Image struct {
	N        int64  // number of the row
	Name     string // as wire.Ref.Name returns it
	Root     string // digest of the manifest, or of the index that the name refers to
	Digest   string // of the manifest
	Platform string
	State    string // wire.StateQueued, …
	Error    string
	Size     int64 // bytes of config and layers in the registry
	Updated  time.Time

	// Only of ready images:
	Chain string
	Tree  chunk.ID
	Bytes int64 // of all files, plain
}

// States counts the images by their state.
func (c *Catalog) States(ctx context.Context) (map[string]int64, error) {
	return mapOf(ctx, c.read, keyValue[string, int64], `SELECT state, count(*) FROM images GROUP BY state`)
}

// Name makes a name refer to these images, in the states that they have in images. It removes the
// name's other images, except those with the digests in coming. A known image keeps its state; but
// if it is to be queued and has failed or was only stored, it is queued again. Name returns the
// images as they are now, in the same order, and the removed ones.
func (c *Catalog) Name(ctx context.Context, name string, images []Image, coming []string) (
	now, gone []Image, err error) {
	args := []any{name}
	for _, digest := range coming {
		args = append(args, digest)
	}
	for _, image := range images {
		args = append(args, image.Digest)
	}
	err = c.update(ctx, "name image "+name, func(tx *sql.Tx) error {
		now, err = setImages(ctx, tx, name, images, `DO UPDATE
			SET root = excluded.root, platform = excluded.platform`)
		if err != nil {
			return err
		}
		gone, err = deleteImages(ctx, tx, ` AND digest NOT IN `+places(1, len(args)-1), args...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	c.changes.Add(1)
	return now, gone, nil
}

// Expect queues images that are being copied to a name. The name refers to its previous images
// until Name is called. Expect returns the images as they are now, in the same order. A ready image
// stays ready.
func (c *Catalog) Expect(ctx context.Context, name string, images []Image) (now []Image, err error) {
	err = c.update(ctx, "queue image "+name, func(tx *sql.Tx) error {
		now, err = setImages(ctx, tx, name, images, `DO NOTHING`)
		return err
	})
	return now, err
}

// setImages adds images to a name. If there is a row, it applies onConflict to it, and queues the
// image again if that is wanted. It returns the images with their numbers and states.
func setImages(ctx context.Context, tx *sql.Tx, name string, images []Image, onConflict string) ([]Image, error) {
	images = slices.Clone(images)
	for i := range images {
		images[i].Name = name
		if err := setImage(ctx, tx, &images[i], onConflict); err != nil {
			return nil, err
		}
	}
	return images, nil
}

func setImage(ctx context.Context, tx *sql.Tx, image *Image, onConflict string) error {
	n, err := newImageNumber(ctx, tx)
	if err != nil {
		return err
	}
	if err := exec(ctx, tx, `
		INSERT INTO images (n, name, root, digest, platform, state, error, size, turn, tries, updated)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)
		ON CONFLICT (name, digest) `+onConflict,
		n, image.Name, image.Root, image.Digest, image.Platform, image.State, image.Error, image.Size, n, now(),
	); err != nil {
		return err
	}
	if image.State == wire.StateQueued {
		if err := exec(ctx, tx, `
			UPDATE images SET state = ?, error = '', updated = ?, turn = ?, tries = 0
				WHERE name = ? AND digest = ? AND state IN (?, ?)`,
			wire.StateQueued, now(), n, image.Name, image.Digest, wire.StateFailed, wire.StateStored); err != nil {
			return err
		}
	}
	return tx.QueryRowContext(ctx, `SELECT n, state FROM images WHERE name = ? AND digest = ?`,
		image.Name, image.Digest).Scan(&image.N, &image.State)
}

// newImageNumber returns a number that no image ever had, so that work on a removed image cannot be
// taken for work on another one. It also orders the queue.
func newImageNumber(ctx context.Context, tx *sql.Tx) (int64, error) {
	return get(ctx, tx, value[int64], `
		INSERT INTO meta (name, value) VALUES ('images', '1')
		ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)
			RETURNING CAST(value AS BIGINT)`)
}

// maxTries is how often a process may end while it ingests an image. Then the image fails, since it
// may be the cause.
const maxTries = 3

// Requeue puts the images that were active when the process ended back into the queue. Those to
// which that happened maxTries times fail.
func (c *Catalog) Requeue(ctx context.Context) error {
	return c.update(ctx, "queue interrupted images again", func(tx *sql.Tx) error {
		if err := exec(ctx, tx, `UPDATE images
			SET state = ?, error = 'image ' || name || ': the hub ended each time that it was ingested'
			WHERE state = ? AND tries >= ?`, wire.StateFailed, wire.StateActive, maxTries); err != nil {
			return err
		}
		return exec(ctx, tx, `UPDATE images SET state = ? WHERE state = ?`, wire.StateQueued, wire.StateActive)
	})
}

// Release puts an active image back into the queue, and does not count the attempt. The error is
// ErrNotFound if the image was removed meanwhile.
func (c *Catalog) Release(ctx context.Context, n int64) error {
	err := change(ctx, c.write, ErrNotFound, `UPDATE images SET state = ?, tries = 0 WHERE n = ? AND state = ?`,
		wire.StateQueued, n, wire.StateActive)
	if err != nil {
		return fmt.Errorf("queue image %d again: %w", n, err)
	}
	return nil
}

// Next makes the first suitable image of the queue active and returns it. The error is ErrNotFound
// if there is none.
func (c *Catalog) Next(ctx context.Context, suits func(Image) bool) (image Image, err error) {
	err = c.update(ctx, "take the next image", func(tx *sql.Tx) error {
		if image, err = firstQueued(ctx, tx, suits); err != nil {
			return err
		}
		image.State = wire.StateActive
		return exec(ctx, tx, `UPDATE images SET state = ?, tries = tries + 1, updated = ? WHERE n = ?`,
			image.State, now(), image.N)
	})
	return image, err
}

func firstQueued(ctx context.Context, tx *sql.Tx, suits func(Image) bool) (Image, error) {
	for image, err := range rows(ctx, tx, func(i *Image) []any {
		return []any{&i.N, &i.Name, &i.Root, &i.Digest, &i.Platform, &i.State}
	}, `SELECT n, name, root, digest, platform, state FROM images WHERE state = ? ORDER BY turn`, wire.StateQueued) {
		if err != nil || suits(image) {
			return image, err
		}
	}
	return Image{}, ErrNotFound
}

// End sets the state of an active image: failed with the reason, or stored. It does nothing if the
// image was removed meanwhile.
func (c *Catalog) End(ctx context.Context, n int64, state, reason string) error {
	return c.exec(ctx, fmt.Sprintf("set state of image %d", n),
		`UPDATE images SET state = ?, error = ?, updated = ? WHERE n = ? AND state = ?`,
		state, reason, now(), n, wire.StateActive)
}

// FailQueued makes the still queued ones among the images fail with the reason.
func (c *Catalog) FailQueued(ctx context.Context, images []Image, reason string) error {
	return c.update(ctx, "fail queued images", func(tx *sql.Tx) error {
		for _, image := range images {
			if err := exec(ctx, tx, `UPDATE images SET state = ?, error = ?, updated = ? WHERE n = ? AND state = ?`,
				wire.StateFailed, reason, now(), image.N, wire.StateQueued); err != nil {
				return fmt.Errorf("image %d: %w", image.N, err)
			}
		}
		return nil
	})
}

// Images returns the images of a name, or all images if name is empty, sorted by name.
func (c *Catalog) Images(ctx context.Context, name string) ([]Image, error) {
	if name == "" {
		return c.images(ctx, byName)
	}
	return c.images(ctx, `WHERE i.name = ? `+byName, name)
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
	return c.images(ctx, `WHERE i.n IN `+places(1, len(numbers))+byName, args...)
}

const byName = ` ORDER BY i.name, i.platform, i.digest`

// images returns the images of table i that a query's clauses select.
func (c *Catalog) images(ctx context.Context, clauses string, args ...any) (images []Image, err error) {
	type row struct {
		Image
		tree sql.Null[chunk.ID]
	}
	for r, err := range rows(ctx, c.read, func(r *row) []any {
		return []any{&r.N, &r.Name, &r.Root, &r.Digest, &r.Platform, &r.State, &r.Error, &r.Size,
			stamp{&r.Updated}, &r.Chain, &r.tree, &r.Bytes}
	}, `SELECT i.n, i.name, i.root, i.digest, i.platform, i.state, i.error, i.size, i.updated,
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

// Remove removes the images of a name and returns them. If digest is not empty, it removes only
// those with this digest or root.
func (c *Catalog) Remove(ctx context.Context, name, digest string) (gone []Image, err error) {
	condition, args := "", []any{name}
	if digest != "" {
		condition, args = ` AND (root = ? OR digest = ?)`, append(args, digest, digest)
	}
	err = c.update(ctx, "remove image "+name, func(tx *sql.Tx) error {
		gone, err = deleteImages(ctx, tx, condition, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.changes.Add(1)
	return gone, nil
}

// deleteImages deletes the images of a name that meet the condition. The name is the first of args.
func deleteImages(ctx context.Context, tx *sql.Tx, condition string, args ...any) ([]Image, error) {
	return list(ctx, tx, func(i *Image) []any { return []any{&i.N, &i.Name, &i.Root, &i.Digest, &i.State} },
		`DELETE FROM images WHERE name = ?`+condition+` RETURNING n, name, root, digest, state`, args...)
}

// NamesIn returns the names in a repository that refer to a digest, as root or as manifest.
func (c *Catalog) NamesIn(ctx context.Context, repository, digest string) ([]string, error) {
	names, err := list(ctx, c.read, value[string],
		`SELECT DISTINCT name FROM images WHERE root = ? OR digest = ?`, digest, digest)
	return slices.DeleteFunc(names, func(name string) bool {
		ref, err := wire.ParseName(name)
		return err != nil || ref.Repository != repository
	}), err
}
