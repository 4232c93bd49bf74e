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

// Image is one image: a manifest, under a name.
type Image struct {
	N        int64  // number of the row: names the image while it is there
	Name     string // as wire.Ref.Name writes it
	Root     string // digest of what the name points to: of the manifest or of an index above it
	Digest   string // of the manifest
	Platform string
	State    string // wire.StateQueued, …
	Error    string
	Size     int64 // of config and layers as they are stored in the registry, bytes
	Updated  time.Time

	// Of images that are ready:
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

// Name says that the name stands for these images, in the states that they have
// in images, and for no others but those that are on their way, by their digests.
// One that is there already keeps its state, unless it is to be queued and has
// failed or was only stored. It returns the images as they are now, in the same
// order, and those that are gone.
func (c *Catalog) Name(ctx context.Context, name string, images []Image, coming []string) (now, gone []Image, err error) {
	now = make([]Image, len(images))
	args := []any{name}
	for _, digest := range coming {
		args = append(args, digest)
	}
	err = c.update(ctx, func(tx *sql.Tx) error {
		for i, image := range images {
			image.Name = name
			if err := setImage(ctx, tx, &image, `DO UPDATE SET root = excluded.root, platform = excluded.platform`); err != nil {
				return err
			}
			now[i] = image
			args = append(args, image.Digest)
		}
		gone, err = deleteImages(ctx, tx, name, ` AND digest NOT IN `+places(1, len(args)-1), args...)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("note image %s: %w", name, err)
	}
	c.changes.Add(1)
	return now, gone, nil
}

// Expect queues images that are on their way to a name, which stands for what it
// stood for until they are all there. It returns them as they are now, in the
// same order: one that is ready stays so.
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

// setImage adds the image, or does to its row what known says and queues it
// again if it is to be queued, and sets its number and state.
func setImage(ctx context.Context, tx *sql.Tx, image *Image, known string) error {
	n, err := newImageNumber(ctx, tx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO images (n, name, root, digest, platform, state, error, size, turn, tries, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)
		ON CONFLICT (name, digest) `+known,
		n, image.Name, image.Root, image.Digest, image.Platform, image.State, image.Error, image.Size, n, time.Now().UnixMilli())
	if err != nil {
		return err
	}
	if image.State == wire.StateQueued {
		_, err = tx.ExecContext(ctx, `
			UPDATE images SET state = ?, error = '', updated = ?, turn = ?, tries = 0 WHERE name = ? AND digest = ? AND state IN (?, ?)`,
			wire.StateQueued, time.Now().UnixMilli(), n, image.Name, image.Digest, wire.StateFailed, wire.StateStored)
		if err != nil {
			return err
		}
	}
	return tx.QueryRowContext(ctx, `SELECT n, state FROM images WHERE name = ? AND digest = ?`,
		image.Name, image.Digest).Scan(&image.N, &image.State)
}

// newImageNumber returns a number that no image ever had: work on one that was
// taken away must not end as that of another. It also orders the queue.
func newImageNumber(ctx context.Context, tx *sql.Tx) (n int64, err error) {
	err = tx.QueryRowContext(ctx, `
		INSERT INTO meta (name, value) VALUES ('images', '1')
		ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT) RETURNING CAST(value AS BIGINT)`).Scan(&n)
	return n, err
}

// maxTries is how often the hub may end while it takes an image in, before it is
// the image that is to blame.
const maxTries = 3

// Requeue puts the images back into the queue that were being taken in when the
// process ended, unless that has happened to them maxTries times.
func (c *Catalog) Requeue(ctx context.Context) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, error = 'image ' || name || ': the hub ended each time that it was taken in' WHERE state = ? AND tries >= ?`,
			wire.StateFailed, wire.StateActive, maxTries)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE images SET state = ? WHERE state = ?`, wire.StateQueued, wire.StateActive)
		return err
	})
}

// Release puts an image back into the queue, for which it is not to blame.
// ErrNotFound: it was taken away meanwhile.
func (c *Catalog) Release(ctx context.Context, n int64) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, tries = 0 WHERE n = ? AND state = ?`, wire.StateQueued, n, wire.StateActive)
		if err != nil {
			return err
		}
		if rows, err := done.RowsAffected(); err != nil || rows == 0 {
			return errors.Join(fmt.Errorf("image %d: %w", n, ErrNotFound), err)
		}
		return nil
	})
}

// Next makes that image active which has waited longest of those that suit, and
// returns it. ErrNotFound: none waits.
func (c *Catalog) Next(ctx context.Context, suits func(Image) bool) (image Image, err error) {
	err = c.update(ctx, func(tx *sql.Tx) error {
		if image, err = firstQueued(ctx, tx, suits); err != nil {
			return err
		}
		image.State = wire.StateActive
		_, err = tx.ExecContext(ctx, `UPDATE images SET state = ?, tries = tries + 1, updated = ? WHERE n = ?`, image.State, time.Now().UnixMilli(), image.N)
		return err
	})
	return image, err
}

func firstQueued(ctx context.Context, tx *sql.Tx, suits func(Image) bool) (Image, error) {
	rows, err := tx.QueryContext(ctx, `SELECT n, name, root, digest, platform FROM images WHERE state = ? ORDER BY turn`, wire.StateQueued)
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

// End ends the work on an image that is active in the given state: failed, with
// the reason, or stored. An image that was taken away meanwhile is no error.
func (c *Catalog) End(ctx context.Context, n int64, state, reason string) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, error = ?, updated = ? WHERE n = ? AND state = ?`,
			state, reason, time.Now().UnixMilli(), n, wire.StateActive)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the end of image %d: %w", n, err)
	}
	return nil
}

// FailQueued ends the waiting of those of the images that still are queued, with
// the reason.
func (c *Catalog) FailQueued(ctx context.Context, images []Image, reason string) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		for _, image := range images {
			if _, err := tx.ExecContext(ctx, `UPDATE images SET state = ?, error = ?, updated = ? WHERE n = ? AND state = ?`,
				wire.StateFailed, reason, time.Now().UnixMilli(), image.N, wire.StateQueued); err != nil {
				return fmt.Errorf("note the end of image %d: %w", image.N, err)
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

// Images lists the images of one name or, without a name, all of them, sorted
// by name.
func (c *Catalog) Images(ctx context.Context, name string) ([]Image, error) {
	query, args := selectImages, []any{index.Format}
	if name != "" {
		query += ` WHERE i.name = ?`
		args = append(args, name)
	}
	return c.images(ctx, query+` ORDER BY i.name, i.platform, i.digest`, args...)
}

// Numbered returns the images with these numbers that are still there, each once.
func (c *Catalog) Numbered(ctx context.Context, numbers []int64) ([]Image, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	args := []any{index.Format}
	for _, n := range numbers {
		args = append(args, n)
	}
	return c.images(ctx, selectImages+` WHERE i.n IN `+places(1, len(numbers))+` ORDER BY i.name, i.platform, i.digest`, args...)
}

func (c *Catalog) images(ctx context.Context, query string, args ...any) ([]Image, error) {
	var images []Image
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var image Image
		var updated int64
		var tree []byte
		if err := rows.Scan(&image.N, &image.Name, &image.Root, &image.Digest, &image.Platform, &image.State, &image.Error,
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

// Remove takes the images away that have the name and, if a digest is given,
// this as their root or their own digest. It returns what it took away.
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
		return nil, fmt.Errorf("take image %s away: %w", name, err)
	}
	c.changes.Add(1)
	return gone, nil
}

// deleteImages deletes those images of a name, the first of args, for which the
// condition holds.
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

// NamesIn lists the names of images in a repository that point to a digest, as
// root or as manifest.
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
