package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	states := map[string]int64{}
	return states, each(ctx, c.read, func(rows *sql.Rows) error {
		var state string
		var n int64
		err := rows.Scan(&state, &n)
		states[state] = n
		return err
	}, `SELECT state, count(*) FROM images GROUP BY state`)
}

// Name makes a name refer to these images, in the states that they have in images. It removes the
// name's other images, except those with the digests in coming. A known image keeps its state; but
// if it is to be queued and has failed or was only stored, it is queued again. Name returns the
// images as they are now, in the same order, and the removed ones.
func (c *Catalog) Name(ctx context.Context, name string, images []Image, coming []string) (
	now, gone []Image, err error) {
	now = make([]Image, len(images))
	args := []any{name}
	for _, digest := range coming {
		args = append(args, digest)
	}
	err = c.update(ctx, func(tx *sql.Tx) error {
		for i, image := range images {
			image.Name = name
			if err := setImage(ctx, tx, &image, `DO UPDATE
				SET root = excluded.root, platform = excluded.platform`); err != nil {
				return err
			}
			now[i] = image
			args = append(args, image.Digest)
		}
		gone, err = deleteImages(ctx, tx, name, ` AND digest NOT IN `+places(1, len(args)-1), args...)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("name image %s: %w", name, err)
	}
	c.changes.Add(1)
	return now, gone, nil
}

// Expect queues images that are being copied to a name. The name refers to its previous images
// until Name is called. Expect returns the images as they are now, in the same order. A ready image
// stays ready.
func (c *Catalog) Expect(ctx context.Context, name string, images []Image) ([]Image, error) {
	now := make([]Image, len(images))
	err := c.update(ctx, func(tx *sql.Tx) error {
		for i, image := range images {
			image.Name, image.State = name, wire.StateQueued
			if err := setImage(ctx, tx, &image, `DO NOTHING`); err != nil {
				return err
			}
			now[i] = image
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("queue image %s: %w", name, err)
	}
	return now, nil
}

// setImage adds an image. If there is a row, it applies onConflict to it, and queues the image
// again if that is wanted. It sets the image's number and state.
func setImage(ctx context.Context, tx *sql.Tx, image *Image, onConflict string) error {
	n, err := newImageNumber(ctx, tx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO images (n, name, root, digest, platform, state, error, size, turn, tries, updated)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)
		ON CONFLICT (name, digest) `+onConflict,
		n, image.Name, image.Root, image.Digest, image.Platform, image.State, image.Error, image.Size, n, time.Now().UnixMilli())
	if err != nil {
		return err
	}
	if image.State == wire.StateQueued {
		_, err = tx.ExecContext(ctx, `
			UPDATE images SET state = ?, error = '', updated = ?, turn = ?, tries = 0
				WHERE name = ? AND digest = ? AND state IN (?, ?)`,
			wire.StateQueued, time.Now().UnixMilli(), n, image.Name, image.Digest, wire.StateFailed, wire.StateStored)
		if err != nil {
			return err
		}
	}
	return tx.QueryRowContext(ctx, `SELECT n, state FROM images WHERE name = ? AND digest = ?`,
		image.Name, image.Digest).Scan(&image.N, &image.State)
}

// newImageNumber returns a number that no image ever had, so that work on a removed image cannot be
// taken for work on another one. It also orders the queue.
func newImageNumber(ctx context.Context, tx *sql.Tx) (n int64, err error) {
	err = tx.QueryRowContext(ctx, `
		INSERT INTO meta (name, value) VALUES ('images', '1')
		ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)
			RETURNING CAST(value AS BIGINT)`).Scan(&n)
	return n, err
}

// maxTries is how often a process may end while it ingests an image. Then the image fails, since it
// may be the cause.
const maxTries = 3

// Requeue puts the images that were active when the process ended back into the queue. Those to
// which that happened maxTries times fail.
func (c *Catalog) Requeue(ctx context.Context) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE images
			SET state = ?, error = 'image ' || name || ': the hub ended each time that it was ingested'
			WHERE state = ? AND tries >= ?`,
			wire.StateFailed, wire.StateActive, maxTries)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE images SET state = ? WHERE state = ?`, wire.StateQueued, wire.StateActive)
		return err
	})
}

// Release puts an active image back into the queue, and does not count the attempt. The error is
// ErrNotFound if the image was removed meanwhile.
func (c *Catalog) Release(ctx context.Context, n int64) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, tries = 0
			WHERE n = ? AND state = ?`, wire.StateQueued, n, wire.StateActive)
		if err != nil {
			return err
		}
		if rows, err := done.RowsAffected(); err != nil || rows == 0 {
			return errors.Join(fmt.Errorf("image %d: %w", n, ErrNotFound), err)
		}
		return nil
	})
}

// Next makes the first suitable image of the queue active and returns it. The error is ErrNotFound
// if there is none.
func (c *Catalog) Next(ctx context.Context, suits func(Image) bool) (image Image, err error) {
	err = c.update(ctx, func(tx *sql.Tx) error {
		if image, err = firstQueued(ctx, tx, suits); err != nil {
			return err
		}
		image.State = wire.StateActive
		_, err = tx.ExecContext(ctx, `UPDATE images SET state = ?, tries = tries + 1, updated = ?
			WHERE n = ?`, image.State, time.Now().UnixMilli(), image.N)
		return err
	})
	return image, err
}

func firstQueued(ctx context.Context, tx *sql.Tx, suits func(Image) bool) (Image, error) {
	rows, err := tx.QueryContext(ctx, `SELECT n, name, root, digest, platform FROM images WHERE state = ?
		ORDER BY turn`, wire.StateQueued)
	if err != nil {
		return Image{}, err
	}
	defer rows.Close()
	for rows.Next() {
		image := Image{State: wire.StateQueued}
		if err := rows.Scan(&image.N, &image.Name, &image.Root, &image.Digest, &image.Platform); err != nil {
			return Image{}, err
		}
		if suits(image) {
			return image, nil
		}
	}
	return Image{}, cmp.Or(rows.Err(), ErrNotFound)
}

// End sets the state of an active image: failed with the reason, or stored. It does nothing if the
// image was removed meanwhile.
func (c *Catalog) End(ctx context.Context, n int64, state, reason string) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, error = ?, updated = ? WHERE n = ? AND state = ?`,
			state, reason, time.Now().UnixMilli(), n, wire.StateActive)
		return err
	})
	if err != nil {
		return fmt.Errorf("set state of image %d: %w", n, err)
	}
	return nil
}

// FailQueued makes the still queued ones among the images fail with the reason.
func (c *Catalog) FailQueued(ctx context.Context, images []Image, reason string) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		for _, image := range images {
			if _, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, error = ?, updated = ?
				WHERE n = ? AND state = ?`,
				wire.StateFailed, reason, time.Now().UnixMilli(), image.N, wire.StateQueued); err != nil {
				return fmt.Errorf("set state of image %d: %w", image.N, err)
			}
		}
		return nil
	})
}

const selectImages = `
	SELECT i.n, i.name, i.root, i.digest, i.platform, i.state, i.error, i.size, i.updated,
		COALESCE(b.chain, ''), s.tree, COALESCE(t.bytes, 0)
	FROM images i
	LEFT JOIN image_blobs b ON b.image = i.n AND b.position >= 0
		AND b.position = (SELECT MAX(position) FROM image_blobs WHERE image = i.n)
	LEFT JOIN statements s ON s.chain = b.chain AND s.format = ?
	LEFT JOIN trees t ON t.tree = s.tree`

// Images returns the images of a name, or all images if name is empty, sorted by name.
func (c *Catalog) Images(ctx context.Context, name string) ([]Image, error) {
	query, args := selectImages, []any{index.Format}
	if name != "" {
		query += ` WHERE i.name = ?`
		args = append(args, name)
	}
	return c.images(ctx, query+` ORDER BY i.name, i.platform, i.digest`, args...)
}

// Numbered returns the images with these numbers that still exist, each once.
func (c *Catalog) Numbered(ctx context.Context, numbers []int64) ([]Image, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	args := []any{index.Format}
	for _, n := range numbers {
		args = append(args, n)
	}
	return c.images(ctx, selectImages+` WHERE i.n IN `+places(1, len(numbers))+`
		ORDER BY i.name, i.platform, i.digest`, args...)
}

func (c *Catalog) images(ctx context.Context, query string, args ...any) ([]Image, error) {
	var images []Image
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var image Image
		var updated int64
		var tree []byte
		if err := rows.Scan(&image.N, &image.Name, &image.Root, &image.Digest, &image.Platform, &image.State,
			&image.Error,
			&image.Size, &updated, &image.Chain, &tree, &image.Bytes); err != nil {
			return err
		}
		copy(image.Tree[:], tree)
		image.Updated = time.UnixMilli(updated).UTC()
		images = append(images, image)
		return nil
	}, query, args...)
	return images, err
}

// Remove removes the images of a name and returns them. If digest is not empty, it removes only
// those with this digest or root.
func (c *Catalog) Remove(ctx context.Context, name, digest string) (gone []Image, err error) {
	condition, args := "", []any{name}
	if digest != "" {
		condition, args = ` AND (root = ? OR digest = ?)`, append(args, digest, digest)
	}
	err = c.update(ctx, func(tx *sql.Tx) error {
		gone, err = deleteImages(ctx, tx, name, condition, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("remove image %s: %w", name, err)
	}
	c.changes.Add(1)
	return gone, nil
}

// deleteImages deletes the images of a name that meet the condition. The name is the first of args.
func deleteImages(ctx context.Context, tx *sql.Tx, name, condition string, args ...any) ([]Image, error) {
	var gone []Image
	err := each(ctx, tx, func(rows *sql.Rows) error {
		image := Image{Name: name}
		err := rows.Scan(&image.N, &image.Root, &image.Digest, &image.State)
		gone = append(gone, image)
		return err
	}, `DELETE FROM images WHERE name = ?`+condition+` RETURNING n, root, digest, state`, args...)
	return gone, err
}

// NamesIn returns the names in a repository that refer to a digest, as root or as manifest.
func (c *Catalog) NamesIn(ctx context.Context, repository, digest string) ([]string, error) {
	var names []string
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		if ref, err := wire.ParseName(name); err == nil && ref.Repository == repository {
			names = append(names, name)
		}
		return nil
	}, `SELECT DISTINCT name FROM images WHERE root = ? OR digest = ?`, digest, digest)
	return names, err
}
