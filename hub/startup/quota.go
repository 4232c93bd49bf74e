package startup

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/hub/catalog"
)

// quota bounds the bytes of all startup packs. The least recently used trees lose their packs. It
// is safe for concurrent use.
type quota struct {
	catalog *catalog.Catalog
	limit   int64 // bytes; 0: the default
	timing  *Timing
	log     *slog.Logger
	room    *semaphore.Weighted // each element of used takes a slot; all domains share the slots

	mu   sync.Mutex             // guards the following
	used map[chunk.ID]time.Time // last uses of trees that the catalog does not have yet
}

// bytes returns how many bytes all startup packs may take.
func (q *quota) bytes(ctx context.Context) (int64, error) {
	if q.limit > 0 {
		return q.limit, nil
	}
	ordinary, err := q.catalog.Starts.PackBytes(ctx)
	return max(ordinary/ordinaryShare, leastLimit), err
}

// use records that a tree was used. It drops the use if too many wait in memory.
func (q *quota) use(tree chunk.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.used[tree]; known || q.room.TryAcquire(1) {
		q.used[tree] = time.Now()
	}
}

// store writes the last uses to the catalog.
func (q *quota) store(ctx context.Context) error {
	q.mu.Lock()
	used := q.used
	q.used = map[chunk.ID]time.Time{}
	q.mu.Unlock()
	q.room.Release(int64(len(used)))
	if len(used) == 0 {
		return nil
	}
	now, err := q.catalog.Now(ctx)
	if err != nil {
		return err
	}
	ahead := time.Until(now) // how far the database's clock is ahead of this machine's
	for tree, at := range used {
		used[tree] = at.Add(ahead)
	}
	return q.catalog.Starts.Used(ctx, used, now.Add(-q.timing.Regain))
}

// enforce evicts the startup packs of the least recently used trees, until the packs of all other
// trees are within the quota. It queues layouts without packs for the evicted trees.
func (q *quota) enforce(ctx context.Context) error {
	if err := q.store(ctx); err != nil {
		return err
	}
	limit, err := q.bytes(ctx)
	if err != nil {
		return err
	}
	lost, err := q.catalog.Starts.Lose(ctx, limit)
	for _, tree := range lost {
		q.log.Info("startup packs evicted: they exceed startup_bytes", "tree", tree.Short(), "limit", limit)
	}
	return err
}
