package completion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
)

const (
	fetchParallel    = 8                      // units that Fetch requests at a time
	fetchRounds      = 3                      // how often Fetch tries to fetch all missing units, at most
	maxFailures      = 3                      // failures in a row, per parallel request, that end a fetch
	progressInterval = 200 * time.Millisecond // least time between two reports of Fetch
)

// Progress is how much of a tree's chunks is cached, in uncompressed bytes.
type Progress struct {
	Cached int64 `json:"cachedBytes"`
	All    int64 `json:"bytes"`
}

// errNotKept says that chunks are still missing after fetchRounds attempts. If the chunks have
// arrived, the cache's status says why the cache has not stored them.
var errNotKept = errors.New("some chunks did not arrive, or the cache did not keep them: see `lighter cache`")

// Lister calls fn for each of some chunks of a tree. It may pass a chunk several times.
type Lister func(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error

// Fetch fetches all chunks of a tree into the cache, at lower priority than reads, and reports its
// progress until it returns. Schedule and rate do not apply.
func (c *Completer) Fetch(ctx context.Context, tree chunk.ID, report func(Progress)) error {
	err := c.FetchListed(ctx, tree, c.parts.Trees.Chunks, report)
	if err == nil {
		c.makeFetchedLocal(ctx, tree)
	}
	return err
}

// FetchListed does what Fetch does, for the chunks that list lists. It makes no local device.
func (c *Completer) FetchListed(ctx context.Context, tree chunk.ID, list Lister, report func(Progress)) error {
	var now Progress
	var reported time.Time
	defer func() { report(now) }()
	var failed error
	for range fetchRounds {
		next := func(left, all int64) error {
			now = Progress{Cached: all - left, All: all}
			if time.Since(reported) >= progressInterval {
				reported = time.Now()
				report(now)
			}
			return context.Cause(ctx)
		}
		complete, err := c.fetchMissing(ctx, tree, list, c.parts.Share(), fetchParallel, next)
		if complete {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		failed = err
	}
	return errors.Join(failed, errNotKept)
}

// makeFetchedLocal makes the local device of a tree that was fetched. If it fails, the fetch has
// still succeeded.
func (c *Completer) makeFetchedLocal(ctx context.Context, tree chunk.ID) {
	if !c.options.Local {
		return
	}
	if err := c.makeLocal(ctx, tree); err != nil {
		c.log.Warn("cannot make the local device of a complete image", "tree", tree.Short(), "err", err)
	}
}

// fetchMissing fetches the missing units of the chunks that list lists, and reports whether all of
// these chunks are cached. It calls next before each unit and at the end, with the bytes of the
// missing chunks and of all listed chunks. The fetch ends if next returns an error, or after
// parallel × maxFailures failures in a row.
func (c *Completer) fetchMissing(
	ctx context.Context, tree chunk.ID, list Lister, share Share, parallel int, next func(left, all int64) error,
) (complete bool, err error) {
	missing, all, err := c.missing(ctx, tree, list)
	if err != nil {
		return false, err
	}
	var left, failures atomic.Int64
	left.Store(total(missing))
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, u := range missing {
		if err = next(left.Load(), all); err != nil || failures.Load() >= maxFailures*int64(parallel) {
			break
		}
		group.Go(func() error {
			if err := share.Prefetch(ctx, u.ref); err != nil {
				failures.Add(1)
				return err
			}
			failures.Store(0)
			left.Add(-u.bytes)
			return nil
		})
	}
	err = cmp.Or(err, group.Wait())
	missing, all, failed := c.missing(ctx, tree, list)
	if failed != nil {
		return false, cmp.Or(err, failed)
	}
	_ = next(total(missing), all) // the fetch is over, so an error cannot end it
	if len(missing) == 0 {
		return true, nil
	}
	return false, err
}

// unit is a unit with missing chunks.
type unit struct {
	ref   chunk.Ref // one of these chunks; fetching it fetches the unit
	bytes int64     // the bytes of all of these chunks
}

// total returns the bytes of the units' missing chunks.
func total(units []unit) (bytes int64) {
	for _, u := range units {
		bytes += u.bytes
	}
	return bytes
}

// missing returns the units that have missing chunks of those that list lists, in the order of
// their packs, and the bytes of all listed chunks.
func (c *Completer) missing(
	ctx context.Context, tree chunk.ID, list Lister,
) (missing []unit, all int64, err error) {
	err = list(ctx, tree, func(ref chunk.Ref) {
		all += int64(ref.Length)
		if !c.parts.Cache.Has(ref.ID) {
			missing = appendChunk(missing, ref, int64(ref.Length))
		}
	})
	if err != nil {
		err = fmt.Errorf("list the chunks of tree %s: %w", tree.Short(), err)
	}
	return inPackOrder(missing), all, err
}

// appendChunk adds a chunk to the last unit if the chunk is in that unit. Otherwise it appends the
// chunk's unit. bytes is the number of bytes of the chunk, or of several chunks of its unit.
func appendChunk(units []unit, ref chunk.Ref, bytes int64) []unit {
	if last := len(units) - 1; last >= 0 && !ref.Unit.IsZero() && units[last].ref.Unit == ref.Unit {
		units[last].bytes += bytes
		return units
	}
	return append(units, unit{ref, bytes})
}

// inPackOrder sorts units by pack and number, and merges entries of the same unit. units is in the
// order of the device. A pack whose first unit comes earlier in units comes earlier in the result.
func inPackOrder(units []unit) []unit {
	packs := map[chunk.ID]int{}
	for _, u := range units {
		if _, known := packs[u.ref.Unit.Pack]; !known {
			packs[u.ref.Unit.Pack] = len(packs)
		}
	}
	slices.SortStableFunc(units, func(a, b unit) int {
		x, y := a.ref.Unit, b.ref.Unit
		return cmp.Or(cmp.Compare(packs[x.Pack], packs[y.Pack]), cmp.Compare(x.N, y.N))
	})
	merged := units[:0]
	for _, u := range units {
		merged = appendChunk(merged, u.ref, u.bytes)
	}
	return merged
}
