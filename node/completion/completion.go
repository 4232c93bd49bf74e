// Package completion fetches all chunks of an image into the cache: in the background, for mounted
// images (Run), or at once, for one image (Fetch). It also makes the local devices of complete
// images.
//
// Background work waits for its schedule and stays within its rate. It never evicts anything:
// cached chunks may be read again, but no reader has asked for the missing ones. It fetches one
// unit of one tree at a time. It fetches only missing units, so after an interruption it continues
// where it stopped.
package completion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/node/mount"
	"lighter/node/trees"
	"lighter/sleep"
	"lighter/store/disk"
)

const (
	lookInterval = 2 * time.Second  // pause between two rounds over the mounted trees
	retryDelay   = time.Minute      // pause after a round that failed, and between two visits of a tree
	burst        = 256 << 10        // bytes that may arrive at once above the rate
	steadyTime   = 10 * time.Minute // time without evictions after which units are fetched in the background
	unitRoom     = 4 << 20          // bytes that have to be free in the cache before a unit is fetched
)

// Options of completion.
type Options struct {
	Complete bool  // fetch missing chunks of mounted trees
	Local    bool  // make local devices of complete trees
	Rate     int64 // bytes a second, compressed; 0: no limit
	Schedule Schedule
	// Short returns why the machine is short of memory or disk; nil: it is not short of either.
	Short func() error
}

// Parts are the parts of a node that completion uses.
type Parts struct {
	Trees  Trees
	Mounts Mounts
	Cache  Cache
	Share  func() Share // returns a new share
}

// Trees are the trees on this machine.
type Trees interface {
	Has(tree chunk.ID) bool
	Chunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error
	HasLocal(tree chunk.ID) (bytes int64, ok bool)
	MakeLocal(ctx context.Context, tree chunk.ID) error
}

// Mounts are the mounted trees.
type Mounts interface {
	Mounted() []mount.Mounted
}

// Cache is the chunk cache.
type Cache interface {
	Has(id chunk.ID) bool
	HasRoom(bytes int64) bool
	Stats() disk.Stats
}

// Share is one share of the node's requests.
type Share interface {
	// Prefetch fetches a chunk's unit into the cache, with the priority of background requests. It
	// returns when the unit is stored.
	Prefetch(ctx context.Context, ref chunk.Ref) error
	// Received returns the bytes that arrived for the share, by origin.
	Received() map[string]int64
}

// Status is the state of completion.
type Status struct {
	On      bool     `json:"on"`               // completion is configured
	Tree    chunk.ID `json:"tree,omitzero"`    // the tree that is being completed
	Left    int64    `json:"leftBytes"`        // uncompressed bytes of this tree's missing chunks
	Fetched int64    `json:"fetchedBytes"`     // compressed bytes fetched since the node started
	Waits   string   `json:"waits,omitempty"`  // why nothing is fetched now
	Failed  string   `json:"failed,omitempty"` // the last failure
	Devices int64    `json:"localDevicesMade"` // number of local devices made since the node started
}

// Of returns the progress of a mounted tree, or why the tree is not being completed.
func (s *Status) Of(tree chunk.ID) string {
	switch {
	case s.Tree == tree && s.Left > 0:
		return fmt.Sprintf("%s to fetch", humanize.IBytes(uint64(s.Left)))
	case s.Tree == tree:
		return "its local device is made"
	case s.Failed != "":
		return "failed: " + s.Failed
	case s.Waits != "":
		return "waits: " + s.Waits
	}
	return ""
}

// Completer completes images. It is safe for concurrent use.
type Completer struct {
	options Options
	parts   Parts
	limiter *rate.Limiter // limits the received bytes a second
	log     *slog.Logger

	mu      sync.Mutex // guards what follows
	status  Status
	evicted int64     // bytes that the cache had evicted at the last check
	steady  time.Time // when steadyTime after the last eviction ends
}

// New returns a completer.
func New(o Options, p Parts, log *slog.Logger) *Completer {
	limit := rate.Inf
	if o.Rate > 0 {
		limit = rate.Limit(o.Rate)
	}
	return &Completer{options: o, parts: p, limiter: rate.NewLimiter(limit, burst), log: log,
		status: Status{On: o.Complete}}
}

// Status returns the state of completion.
func (c *Completer) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Completer) update(fn func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn(&c.status)
}

// visit is the last attempt to complete a tree.
type visit struct {
	lost int64     // what Completer.lost returned before the visit; -1: visit the tree again in any case
	next time.Time // the earliest time of the next visit
}

// Run completes mounted trees until ctx is done. It ignores trees that were pulled but not mounted,
// because no process reads them.
func (c *Completer) Run(ctx context.Context) {
	if !c.options.Complete && !c.options.Local {
		return
	}
	visits := map[chunk.ID]visit{}
	failed := ""
	for ctx.Err() == nil {
		before := failed
		waits := ""
		failed = ""
		err := c.completeAll(ctx, visits)
		if notNow := (errNotNow{}); errors.As(err, &notNow) {
			waits = notNow.Error()
		} else if err != nil {
			failed = err.Error()
		}
		c.update(func(s *Status) { s.Tree, s.Left, s.Waits, s.Failed = chunk.ID{}, 0, waits, failed })
		wait := lookInterval
		if failed != "" && ctx.Err() == nil {
			wait = retryDelay
			if failed != before {
				c.log.Warn("cannot complete all mounted images", "duration", wait, "err", failed)
			}
		}
		sleep.For(ctx, wait)
	}
}

// completeAll completes the mounted trees that are due, and makes their local devices.
func (c *Completer) completeAll(ctx context.Context, visits map[chunk.ID]visit) error {
	trees := c.mounted()
	maps.DeleteFunc(visits, func(tree chunk.ID, _ visit) bool { return !slices.Contains(trees, tree) })
	var failed error
	for _, tree := range trees {
		if !c.isDue(tree, visits) {
			continue
		}
		if err := c.mayFetch(); err != nil {
			return err
		}
		now := visit{lost: c.lost(), next: time.Now().Add(retryDelay)}
		complete, err := c.completeTree(ctx, tree)
		if complete && c.options.Local {
			err = c.makeLocal(ctx, tree)
		}
		if errors.As(err, new(errNotNow)) || ctx.Err() != nil {
			return err
		}
		if !complete || c.options.Local {
			now.lost = -1
		}
		visits[tree] = now
		failed = errors.Join(failed, err)
	}
	return failed
}

// isDue reports whether to visit a tree now. A tree that was visited is due again after retryDelay
// if it was not finished, or if the cache may have lost chunks since. A tree with a local device
// needs no chunks.
func (c *Completer) isDue(tree chunk.ID, visits map[chunk.ID]visit) bool {
	if _, local := c.parts.Trees.HasLocal(tree); local {
		return false
	}
	v, visited := visits[tree]
	return !visited || time.Now().After(v.next) && v.lost != c.lost()
}

func (c *Completer) mounted() (trees []chunk.ID) {
	for _, m := range c.parts.Mounts.Mounted() {
		trees = append(trees, m.Tree)
	}
	slices.SortFunc(trees, func(a, b chunk.ID) int { return slices.Compare(a[:], b[:]) })
	return trees
}

// lost returns a number that changes whenever the cache may have lost chunks.
func (c *Completer) lost() int64 {
	s := c.parts.Cache.Stats()
	return s.Evicted + s.Damaged + s.Unread
}

// errNotNow says why nothing is fetched now. It is not a failure.
type errNotNow struct{ why string }

func (e errNotNow) Error() string { return e.why }

// mayFetch returns an errNotNow if nothing may be fetched in the background now, else nil.
func (c *Completer) mayFetch() error {
	if !c.options.Schedule.Open(time.Now()) {
		return errNotNow{"the schedule is " + c.options.Schedule.String()}
	}
	if err := c.options.Short(); err != nil {
		return errNotNow{err.Error()}
	}
	if !c.parts.Cache.HasRoom(unitRoom) {
		return errNotNow{"the cache is full, and nothing is evicted for completion"}
	}
	if !c.isSteady(c.parts.Cache.Stats().Evicted, time.Now()) {
		return errNotNow{"the cache has lately evicted chunks"}
	}
	return nil
}

// isSteady reports whether the cache has evicted nothing for steadyTime. evicted is the number of
// bytes that it has evicted so far.
func (c *Completer) isSteady(evicted int64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if evicted != c.evicted {
		c.evicted, c.steady = evicted, now.Add(steadyTime)
	}
	return !now.Before(c.steady)
}

// Admit waits until other background work may fetch a number of compressed bytes: for the schedule
// and the rate, and while the machine is short of memory or disk. The error is that of ctx.
func (c *Completer) Admit(ctx context.Context, bytes int64) error {
	for !c.options.Schedule.Open(time.Now()) || c.options.Short() != nil {
		if !sleep.For(ctx, lookInterval) {
			return context.Cause(ctx)
		}
	}
	return c.limit(ctx, bytes)
}

// limit waits as long as the rate requires for a number of bytes.
func (c *Completer) limit(ctx context.Context, bytes int64) (err error) {
	for ; bytes > 0 && err == nil; bytes -= burst {
		err = c.limiter.WaitN(ctx, int(min(bytes, burst)))
	}
	return err
}

// completeTree fetches the missing units of a tree in the background, if that is configured, and
// reports whether the tree is complete.
func (c *Completer) completeTree(ctx context.Context, tree chunk.ID) (complete bool, err error) {
	if !c.options.Complete {
		missing, _, err := c.missing(ctx, tree, c.parts.Trees.Chunks)
		return err == nil && len(missing) == 0, err
	}
	share, received := c.parts.Share(), int64(0)
	complete, err = c.fetchMissing(ctx, tree, c.parts.Trees.Chunks, share, 1, func(left, _ int64) (err error) {
		c.update(func(s *Status) { s.Tree, s.Left, s.Waits = tree, left, "" })
		if received, err = c.pace(ctx, share, received); err != nil {
			return err
		}
		if !c.parts.Trees.Has(tree) {
			return errNotNow{"the image was removed"}
		}
		return c.mayFetch()
	})
	if err != nil {
		err = fmt.Errorf("complete tree %s: %w", tree.Short(), err)
	}
	return complete, err
}

// pace counts the bytes that have arrived for share since its last call, and waits as long as the
// rate requires for them. before is the total that the last call returned.
func (c *Completer) pace(ctx context.Context, share Share, before int64) (total int64, err error) {
	for _, bytes := range share.Received() {
		total += bytes
	}
	c.update(func(s *Status) { s.Fetched += total - before })
	return total, c.limit(ctx, total-before)
}

// makeLocal makes a tree's local device.
func (c *Completer) makeLocal(ctx context.Context, tree chunk.ID) error {
	c.update(func(s *Status) { s.Tree, s.Left, s.Waits = tree, 0, "" })
	err := c.parts.Trees.MakeLocal(ctx, tree)
	switch {
	case err == nil:
		c.update(func(s *Status) { s.Devices++ })
		c.log.Info("made a local device: new mounts of the tree do not need the daemon", "tree", tree.Short())
	case errors.Is(err, trees.ErrNotCached), errors.Is(err, trees.ErrDerived):
		return nil // chunks were evicted meanwhile, or the tree never has a local device
	}
	return err
}
