package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
)

// Sizes are the bytes of an image that no other image has. Images with the same digest count as
// one.
type Sizes struct {
	Chunks int64 // plain bytes of its chunks
	Stored int64 // stored bytes of its chunks, and bytes of its blobs, as its manifest has them
}

// changes counts changes of the set of ready images.
type changes struct {
	n    atomic.Int64
	wake chan struct{} // has an element when sizes are to be computed
}

// Add adds n changes and wakes KeepSizes.
func (c *changes) Add(n int64) {
	c.n.Add(n)
	select {
	case c.wake <- struct{}{}:
	default: // KeepSizes is woken already
	}
}

// sizesRetry is the pause after a failed computation of sizes. A change ends it.
const sizesRetry = 5 * time.Second

// KeepSizes computes sizes after each change by this process, until ctx ends. Only one call may run
// at a time. It logs a failed computation, and computes again after a pause or the next change.
//
// Several processes may compute sizes at the same time. A computation is stored only if none was
// stored since it began. So the stored sizes include each change whose process has computed sizes
// after it.
func (c *Catalog) KeepSizes(ctx context.Context, log *slog.Logger) error {
	for {
		changes := c.changes.n.Load()
		err := c.countSizes(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrChanged) {
			continue // another process has stored its sizes, so the hub as a whole gets on
		}
		var retry <-chan time.Time
		if err != nil {
			log.Error("cannot compute the images' sizes", "err", err)
			retry = time.After(sizesRetry)
		} else {
			c.sized.Store(changes)
		}
		select {
		case <-c.changes.wake:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
	}
}

// Sizes returns the sizes of the images of a name, or of all ready images if name is empty, by
// digest. They are the results of the last successful computation: unless current is true, some may
// be missing or outdated. current does not regard changes by other processes. A computation takes
// seconds in a large catalog, so Sizes does not wait for one.
func (c *Catalog) Sizes(ctx context.Context, name string) (sizes map[string]Sizes, current bool, err error) {
	current = c.sized.Load() >= c.changes.n.Load()
	fields := func(digest *string, s *Sizes) []any { return []any{digest, &s.Chunks, &s.Stored} }
	query, args := `SELECT digest, plain, stored + blobs FROM image_sizes`, []any{}
	if name != "" {
		query, args = query+` WHERE digest IN (SELECT digest FROM images WHERE name = ?)`, append(args, name)
	}
	sizes, err = database.Map(ctx, c.db.Read, fields, query, args...)
	return sizes, current, err
}

// imageSize is a row of image_sizes.
type imageSize struct {
	alone                string // the encoded set of the chunks that no other image has
	plain, stored, blobs int64
}

// countSizes brings image_sizes up to date. It reads all layers, but only the chunks of those
// images whose set of own chunks has changed. The error is ErrChanged if another process has stored
// sizes meanwhile: it may know of later changes.
func (c *Catalog) countSizes(ctx context.Context) error {
	count, err := database.Get(ctx, c.db.Read, database.Value[int64],
		`SELECT COALESCE(MAX(CAST(value AS BIGINT)), 0) FROM meta WHERE name = 'sizes'`)
	if err != nil {
		return err
	}
	digests, blobs, err := imageBlobs(ctx, c.db.Read)
	if err != nil {
		return err
	}
	now := make([]imageSize, len(digests)+1) // images count from 1
	layers := map[string][]int32{}           // diffID → images
	for _, b := range blobs {
		if owner := ownerOf(b.images); owner > 0 {
			now[owner].blobs += b.size
		}
		if b.diffID != "" {
			layers[b.diffID] = append(layers[b.diffID], b.images...)
		}
	}
	owners, err := chunkOwners(ctx, c.db.Read, layers)
	if err != nil {
		return err
	}
	for i, alone := range ownRuns(owners, len(now)) {
		now[i].alone = string(alone)
	}
	gone, err := storedSizes(ctx, c.db.Read)
	if err != nil {
		return err
	}
	changed := map[string]imageSize{}
	for i, digest := range digests {
		size, before := now[i+1], gone[digest]
		_, known := gone[digest]
		delete(gone, digest)
		if size.plain, size.stored = before.plain, before.stored; !known || size.alone != before.alone {
			if err := sumChunks(ctx, c.db.Read, &size); err != nil {
				return err
			}
		}
		if !known || size != before {
			changed[digest] = size
		}
	}
	return c.storeSizes(ctx, count, changed, gone)
}

// ownRuns returns, by an image's number, the encoded set of the chunks that no other image has.
func ownRuns(owners numberset.Values, images int) [][]byte {
	runs := make([][]byte, images)
	ends := make([]int64, images)
	for r := range owners.Runs() {
		if owner := r.Value; owner != severalImages {
			runs[owner] = numberset.AppendRun(runs[owner], ends[owner], r.First, r.End)
			ends[owner] = r.End
		}
	}
	return runs
}

// sumChunks sets the bytes of the chunks in size.alone.
func sumChunks(ctx context.Context, in database.Session, size *imageSize) error {
	size.plain, size.stored = 0, 0
	sum, err := in.Prepare(ctx, `
		SELECT COALESCE(SUM(c.length), 0), COALESCE(SUM(c.length * u.stored / u.plain), 0)
		FROM chunks c JOIN units u ON u.n = c.unit WHERE c.n >= ? AND c.n < ? AND u.plain > 0`)
	if err != nil {
		return fmt.Errorf("read the database: %w", err)
	}
	defer sum.Close()
	return numberset.Decode([]byte(size.alone), func(first, end int64) error {
		var plain, stored int64
		if err := sum.QueryRowContext(ctx, first, end).Scan(&plain, &stored); err != nil {
			return fmt.Errorf("read the database: %w", err)
		}
		size.plain += plain
		size.stored += stored
		return nil
	})
}

// storedSizes returns the rows of image_sizes, by digest.
func storedSizes(ctx context.Context, in database.Session) (map[string]imageSize, error) {
	return database.Map(ctx, in, func(digest *string, s *imageSize) []any {
		return []any{digest, &s.alone, &s.plain, &s.stored, &s.blobs}
	}, `SELECT digest, alone, plain, stored, blobs FROM image_sizes`)
}

// storeSizes writes the rows of image_sizes that have changed, and deletes those that are gone. It
// counts in table meta how often sizes were stored. It counts even if no row has changed: an older
// computation may differ. The error is ErrChanged if the count in meta is not count any more.
func (c *Catalog) storeSizes(ctx context.Context, count int64, changed, gone map[string]imageSize) error {
	return c.db.Update(ctx, "store the images' sizes", func(tx database.Session) error {
		if err := tx.Change(ctx, ErrChanged, `INSERT INTO meta (name, value) VALUES ('sizes', '1')
			ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)
			WHERE CAST(meta.value AS BIGINT) = ?`, count); err != nil {
			return err
		}
		for digest := range gone {
			if err := tx.Exec(ctx, `DELETE FROM image_sizes WHERE digest = ?`, digest); err != nil {
				return err
			}
		}
		for digest, s := range changed {
			if err := tx.Exec(ctx, `
				INSERT INTO image_sizes (digest, alone, plain, stored, blobs) VALUES (?, ?, ?, ?, ?)
				ON CONFLICT (digest) DO UPDATE SET alone = excluded.alone, plain = excluded.plain,
					stored = excluded.stored, blobs = excluded.blobs`,
				digest, []byte(s.alone), s.plain, s.stored, s.blobs); err != nil {
				return err
			}
		}
		return nil
	})
}
