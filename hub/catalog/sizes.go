package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes say what only one image has. Images of the same digest count as one.
type Sizes struct {
	Chunks int64 // plain bytes of its chunks
	Stored int64 // stored bytes of its chunks and of its blobs in the registry
}

// sizesTable holds what was counted last. It follows from the other tables, and
// is therefore no part of the schema.
const sizesTable = `
CREATE TABLE IF NOT EXISTS image_sizes (
	digest TEXT PRIMARY KEY, -- of the images that are counted as one
	alone  BLOB NOT NULL,    -- numbers of the chunks that it alone has, as runs
	plain  BIGINT NOT NULL,  -- bytes of these
	stored BIGINT NOT NULL,
	blobs  BIGINT NOT NULL   -- bytes of the blobs that it alone has
)`

// changes counts the changes of the set of ready images.
type changes struct {
	n    atomic.Int64
	wake chan struct{} // holds a token when sizes have to be counted
}

// Add notes changes.
func (c *changes) Add(n int64) {
	c.n.Add(n)
	select {
	case c.wake <- struct{}{}:
	default: // whoever counts will see this change too
	}
}

// counting is how far the counting of sizes is.
type counting struct {
	wait time.Duration // that Sizes grants it

	mu      sync.Mutex // guards the following
	changes int64      // that the table knows of; -1: none was counted yet
	err     error      // of the last count
	ended   chan struct{}
}

// sizesWait is how long an answer may wait for sizes that are being counted: on
// all but the largest hubs they are ready sooner.
const sizesWait = 2 * time.Second

func newCounting() counting {
	return counting{wait: sizesWait, changes: -1, ended: make(chan struct{})}
}

// KeepSizes counts sizes anew after each change, until ctx ends. One call of it
// has to run for Sizes to be right.
func (c *Catalog) KeepSizes(ctx context.Context) error {
	for {
		changes := c.changes.n.Load()
		err := c.countSizes(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s := &c.sizes
		s.mu.Lock()
		if s.err = err; err == nil {
			s.changes = changes
		}
		close(s.ended)
		s.ended = make(chan struct{})
		s.mu.Unlock()
		select {
		case <-c.changes.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Sizes returns the sizes of the images of one name or, without a name, of all
// that are ready, by digest. Those that are still being counted after a while
// are missing or as they were before.
func (c *Catalog) Sizes(ctx context.Context, name string) (map[string]Sizes, error) {
	if err := c.awaitSizes(ctx); err != nil {
		return nil, fmt.Errorf("count what each image has alone: %w", err)
	}
	query, args := `SELECT digest, plain, stored + blobs FROM image_sizes`, []any{}
	if name != "" {
		query, args = query+` WHERE digest IN (SELECT digest FROM images WHERE name = ?)`, append(args, name)
	}
	sizes := map[string]Sizes{}
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var digest string
		var s Sizes
		err := rows.Scan(&digest, &s.Chunks, &s.Stored)
		sizes[digest] = s
		return err
	}, query, args...)
	return sizes, err
}

// awaitSizes waits a while for the changes until now to be counted.
func (c *Catalog) awaitSizes(ctx context.Context) error {
	wanted := c.changes.n.Load()
	enough := time.NewTimer(c.sizes.wait)
	defer enough.Stop()
	for first := true; ; first = false {
		s := &c.sizes
		s.mu.Lock()
		changes, err, ended := s.changes, s.err, s.ended
		s.mu.Unlock()
		switch {
		case changes >= wanted:
			return nil
		case err != nil && !first:
			return err
		case err != nil:
			c.changes.Add(0) // try again
		}
		select {
		case <-ended:
		case <-enough.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// imageSize is a row of image_sizes.
type imageSize struct {
	alone                string // runs
	plain, stored, blobs int64
}

// countSizes brings image_sizes up to date. It passes over all layers, but only
// over the chunks of those images of which it says something new.
func (c *Catalog) countSizes(ctx context.Context) error {
	digests, blobs, err := c.imageBlobs(ctx)
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
	owners, err := c.chunkOwners(ctx, layers)
	if err != nil {
		return err
	}
	for i, alone := range ownRuns(owners, len(now)) {
		now[i].alone = string(alone)
	}
	gone, err := c.countedSizes(ctx)
	if err != nil {
		return err
	}
	changed := map[string]imageSize{}
	for i, digest := range digests {
		size, before := now[i+1], gone[digest]
		_, known := gone[digest]
		delete(gone, digest)
		if size.plain, size.stored = before.plain, before.stored; !known || size.alone != before.alone {
			if err := c.sumChunks(ctx, &size); err != nil {
				return err
			}
		}
		if !known || size != before {
			changed[digest] = size
		}
	}
	return c.noteSizes(ctx, changed, gone)
}

// ownRuns returns for each image, up to the number images, the runs of the
// chunks that it alone has.
func ownRuns(owners []int32, images int) [][]byte {
	runs := make([][]byte, images)
	ends := make([]int64, images)
	for first := 0; first < len(owners); {
		end := first + 1
		for end < len(owners) && owners[end] == owners[first] {
			end++
		}
		if owner := owners[first]; owner > 0 {
			runs[owner] = appendRun(runs[owner], ends[owner], int64(first), int64(end))
			ends[owner] = int64(end)
		}
		first = end
	}
	return runs
}

// sumChunks sets the bytes of the chunks that an image has alone.
func (c *Catalog) sumChunks(ctx context.Context, size *imageSize) error {
	size.plain, size.stored = 0, 0
	sum, err := c.read.PrepareContext(ctx, `
		SELECT COALESCE(SUM(c.length), 0), COALESCE(SUM(c.length * u.stored / u.plain), 0)
		FROM chunks c JOIN units u ON u.n = c.unit WHERE c.n >= ? AND c.n < ? AND u.plain > 0`)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	defer sum.Close()
	var failed error
	err = decodeRuns([]byte(size.alone), func(first, end int64) {
		if failed != nil {
			return
		}
		var plain, stored int64
		failed = sum.QueryRowContext(ctx, first, end).Scan(&plain, &stored)
		size.plain += plain
		size.stored += stored
	})
	if failed != nil {
		return fmt.Errorf("read the catalog: %w", failed)
	}
	return err
}

// countedSizes returns what was counted before.
func (c *Catalog) countedSizes(ctx context.Context) (map[string]imageSize, error) {
	sizes := map[string]imageSize{}
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var digest string
		var alone []byte
		var s imageSize
		err := rows.Scan(&digest, &alone, &s.plain, &s.stored, &s.blobs)
		s.alone = string(alone)
		sizes[digest] = s
		return err
	}, `SELECT digest, alone, plain, stored, blobs FROM image_sizes`)
	return sizes, err
}

// noteSizes writes the sizes that have changed and takes those away that are gone.
func (c *Catalog) noteSizes(ctx context.Context, changed, gone map[string]imageSize) error {
	if len(changed) == 0 && len(gone) == 0 {
		return nil
	}
	return c.update(ctx, func(tx *sql.Tx) error {
		for digest := range gone {
			if _, err := tx.ExecContext(ctx, `DELETE FROM image_sizes WHERE digest = ?`, digest); err != nil {
				return err
			}
		}
		for digest, s := range changed {
			if _, err := tx.ExecContext(ctx, `
				INSERT INTO image_sizes (digest, alone, plain, stored, blobs) VALUES (?, ?, ?, ?, ?)
				ON CONFLICT (digest) DO UPDATE SET alone = excluded.alone, plain = excluded.plain, stored = excluded.stored, blobs = excluded.blobs`,
				digest, []byte(s.alone), s.plain, s.stored, s.blobs); err != nil {
				return err
			}
		}
		return nil
	})
}
