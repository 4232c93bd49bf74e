package catalog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes are the bytes that only one image has. Images with the same digest count as one.
type Sizes struct {
	Chunks int64 // plain bytes of its chunks
	Stored int64 // stored bytes of its chunks and of its blobs in the registry
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
	default: // it is woken already
	}
}

// sizesState is the progress of KeepSizes.
type sizesState struct {
	wait time.Duration // how long Sizes waits

	mu      sync.Mutex    // guards the following
	changes int64         // changes that the table includes; -1: unknown
	err     error         // of the last computation
	ended   chan struct{} // closed after each computation
}

// sizesWait bounds how long an answer waits for sizes. Only on the largest hubs they take longer.
const sizesWait = 2 * time.Second

func newSizesState() sizesState {
	return sizesState{wait: sizesWait, changes: -1, ended: make(chan struct{})}
}

// KeepSizes computes sizes after each change, until ctx ends. Sizes needs one running call of it.
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

// Sizes returns the sizes of the images of a name, or of all ready images if name is empty, by
// digest. It waits for KeepSizes for sizesWait; then sizes may be missing or outdated.
func (c *Catalog) Sizes(ctx context.Context, name string) (map[string]Sizes, error) {
	if err := c.awaitSizes(ctx); err != nil {
		return nil, fmt.Errorf("compute the images' sizes: %w", err)
	}
	fields := func(digest *string, s *Sizes) []any { return []any{digest, &s.Chunks, &s.Stored} }
	const query = `SELECT digest, plain, stored + blobs FROM image_sizes`
	if name == "" {
		return mapOf(ctx, c.read, fields, query)
	}
	return mapOf(ctx, c.read, fields, query+` WHERE digest IN (SELECT digest FROM images WHERE name = ?)`, name)
}

// awaitSizes waits until the sizes include the changes until now, for a bounded time.
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

// countSizes brings image_sizes up to date. It reads all layers, but only the chunks of images
// whose set of own chunks has changed.
func (c *Catalog) countSizes(ctx context.Context) error {
	digests, blobs, err := imageBlobs(ctx, c.read)
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
	owners, err := chunkOwners(ctx, c.read, layers)
	if err != nil {
		return err
	}
	for i, alone := range ownRuns(owners, len(now)) {
		now[i].alone = string(alone)
	}
	gone, err := storedSizes(ctx, c.read)
	if err != nil {
		return err
	}
	changed := map[string]imageSize{}
	for i, digest := range digests {
		size, before := now[i+1], gone[digest]
		_, known := gone[digest]
		delete(gone, digest)
		if size.plain, size.stored = before.plain, before.stored; !known || size.alone != before.alone {
			if err := sumChunks(ctx, c.read, &size); err != nil {
				return err
			}
		}
		if !known || size != before {
			changed[digest] = size
		}
	}
	return c.storeSizes(ctx, changed, gone)
}

// ownRuns returns, by image, the runs of the chunks that no other image has.
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

// sumChunks sets the bytes of the chunks that no other image has.
func sumChunks(ctx context.Context, db session, size *imageSize) error {
	size.plain, size.stored = 0, 0
	sum, err := db.prepare(ctx, `
		SELECT COALESCE(SUM(c.length), 0), COALESCE(SUM(c.length * u.stored / u.plain), 0)
		FROM chunks c JOIN units u ON u.n = c.unit WHERE c.n >= ? AND c.n < ? AND u.plain > 0`)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	defer sum.Close()
	return decodeRuns([]byte(size.alone), func(first, end int64) error {
		var plain, stored int64
		if err := sum.QueryRowContext(ctx, first, end).Scan(&plain, &stored); err != nil {
			return fmt.Errorf("read the catalog: %w", err)
		}
		size.plain += plain
		size.stored += stored
		return nil
	})
}

// storedSizes returns the rows of image_sizes, by digest.
func storedSizes(ctx context.Context, db session) (map[string]imageSize, error) {
	return mapOf(ctx, db, func(digest *string, s *imageSize) []any {
		return []any{digest, &s.alone, &s.plain, &s.stored, &s.blobs}
	}, `SELECT digest, alone, plain, stored, blobs FROM image_sizes`)
}

// storeSizes writes changed rows of image_sizes, and deletes others.
func (c *Catalog) storeSizes(ctx context.Context, changed, gone map[string]imageSize) error {
	if len(changed) == 0 && len(gone) == 0 {
		return nil
	}
	return c.update(ctx, "store the images' sizes", func(tx session) error {
		for digest := range gone {
			if err := exec(ctx, tx, `DELETE FROM image_sizes WHERE digest = ?`, digest); err != nil {
				return err
			}
		}
		for digest, s := range changed {
			if err := exec(ctx, tx, `
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
