package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/node/trees"
	"lighter/store"
)

const (
	// completeLook is the time between two looks at what is to be completed,
	// completeAgain that after something has failed.
	completeLook  = 2 * time.Second
	completeAgain = time.Minute
	// completeFailures is how many units in a row may fail before it is left alone.
	completeFailures = 3
	// completeBurst is how many bytes may come at once, whatever the rate.
	completeBurst = 256 << 10
	// completeCalm is for how long nothing is fetched after the cache gave way: what it
	// lost was read by somebody, and what would come is not.
	completeCalm = 10 * time.Minute
	// completeRoom is what has to be free of the cache for another unit.
	completeRoom = 4 << 20
)

// CompletionStatus says what is fetched of images beside what is read of them.
type CompletionStatus struct {
	On      bool     `json:"on"`               // it is configured
	Tree    chunk.ID `json:"tree,omitzero"`    // whose turn it is
	Left    int64    `json:"leftBytes"`        // of its chunks that are not here
	Fetched int64    `json:"fetchedBytes"`     // in all, as it came
	Waits   string   `json:"waits,omitempty"`  // why nothing is fetched now
	Failed  string   `json:"failed,omitempty"` // what went wrong last
	Devices int64    `json:"localDevicesMade"` // in all
}

// of says of a tree that is in use how far it is, or why nothing is done.
func (s *CompletionStatus) of(tree chunk.ID) string {
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

// completion fetches all of the images that are in use, and makes their local devices,
// for nobody who waits.
type completion struct {
	limiter *rate.Limiter // of bytes as they come

	mu      sync.Mutex // guards what follows
	status  CompletionStatus
	evicted int64     // of the cache
	calm    time.Time // from then on it has not given way for a while
}

func newCompletion(config Config) *completion {
	limit := rate.Inf
	if config.CompleteRate > 0 {
		limit = rate.Limit(config.CompleteRate)
	}
	return &completion{limiter: rate.NewLimiter(limit, completeBurst), status: CompletionStatus{On: config.Complete}}
}

func (c *completion) change(fn func(*CompletionStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn(&c.status)
}

func (c *completion) get() CompletionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// seen is what was found of a tree.
type seen struct {
	lost  int64     // of the cache when nothing of the tree was missing; -1: something was
	again time.Time // it is not looked at before
}

// complete does it until ctx is done, for the trees that are mounted: of what was
// pulled and never run nobody has wanted a byte. One tree after the other, one unit
// after the other; what is here is not fetched, so it goes on where it ended.
func (n *Node) complete(ctx context.Context) {
	if !n.config.Complete && !n.config.LocalDevice {
		return
	}
	if n.config.LocalDevice && n.config.ScrubRate == 0 {
		n.log.Warn("nothing verifies local devices once they are made: set scrub_rate")
	}
	all := map[chunk.ID]seen{}
	for ctx.Err() == nil {
		err := n.completeAll(ctx, all)
		waits, failed := "", ""
		if not := (errNotNow{}); errors.As(err, &not) {
			waits = not.Error()
		} else if err != nil {
			failed = err.Error()
		}
		before := n.completion.get().Failed
		n.completion.change(func(s *CompletionStatus) { s.Tree, s.Left, s.Waits, s.Failed = chunk.ID{}, 0, waits, failed })
		wait := completeLook
		if failed != "" && ctx.Err() == nil {
			wait = completeAgain
			if failed != before {
				n.log.Warn("not all of what is in use is completed", "again", wait, "cause", failed)
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// completeAll completes what is mounted, and makes local devices, as far as it may.
func (n *Node) completeAll(ctx context.Context, all map[chunk.ID]seen) error {
	trees := n.mountedTrees()
	maps.DeleteFunc(all, func(tree chunk.ID, _ seen) bool { return !slices.Contains(trees, tree) })
	var failed error
	for _, tree := range trees {
		if !n.isDue(tree, all[tree]) {
			continue
		}
		if err := n.mayComplete(); err != nil {
			return err
		}
		now := seen{lost: n.lostOfCache()}
		whole, err := n.completeTree(ctx, tree)
		if !whole {
			now.lost = -1
		}
		if !n.config.Complete || whole {
			now.again = time.Now().Add(completeAgain)
		}
		if whole && n.config.LocalDevice {
			err = n.makeLocal(ctx, tree)
		}
		if not := (errNotNow{}); errors.As(err, &not) || ctx.Err() != nil {
			return err
		}
		all[tree] = now
		failed = errors.Join(failed, err)
	}
	return failed
}

// isDue tells whether a tree is to be looked at. One with a local device needs no
// chunks.
func (n *Node) isDue(tree chunk.ID, s seen) bool {
	if _, local := n.trees.HasLocal(tree); local {
		return false
	}
	if time.Now().Before(s.again) {
		return s.lost >= 0 && s.lost != n.lostOfCache()
	}
	return n.config.LocalDevice || s == (seen{}) || s.lost != n.lostOfCache()
}

func (n *Node) mountedTrees() (trees []chunk.ID) {
	for _, m := range n.mounts.Mounted() {
		trees = append(trees, m.Tree)
	}
	slices.SortFunc(trees, func(a, b chunk.ID) int { return slices.Compare(a[:], b[:]) })
	return trees
}

// lostOfCache changes whenever the cache may have lost chunks.
func (n *Node) lostOfCache() int64 {
	s := n.cache.Stats()
	return s.Evicted + s.Damaged + s.Unread
}

// errNotNow says why nothing is completed for the time being, which is no failure.
type errNotNow struct{ why string }

func (e errNotNow) Error() string { return e.why }

// mayComplete says why nothing may be fetched now for nobody who waits.
func (n *Node) mayComplete() error {
	if !n.config.CompleteSchedule.Open(time.Now()) {
		return errNotNow{"it is done at " + n.config.CompleteSchedule.String() + " alone"}
	}
	if err := n.short(); err != nil {
		return errNotNow{err.Error()}
	}
	if !n.cache.HasRoom(completeRoom) {
		return errNotNow{"the cache is full, and nothing goes for what nobody has read"}
	}
	if !n.completion.isCalm(n.cache.Stats().Evicted, time.Now()) {
		return errNotNow{"the cache gave way to what is read"}
	}
	return nil
}

// isCalm tells whether the cache, which has evicted so much in all, has not done so for
// a while.
func (c *completion) isCalm(evicted int64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if evicted != c.evicted {
		c.evicted, c.calm = evicted, now.Add(completeCalm)
	}
	return !now.Before(c.calm)
}

// completeTree fetches what is not here of a tree, and tells whether nothing is
// missing any more.
func (n *Node) completeTree(ctx context.Context, tree chunk.ID) (whole bool, err error) {
	missing, left, err := n.lacking(ctx, tree)
	if err != nil || left == 0 || !n.config.Complete {
		return err == nil && left == 0, err
	}
	units := n.units.Share()
	before, failures := int64(0), 0
	for _, m := range missing {
		n.completion.change(func(s *CompletionStatus) { s.Tree, s.Left, s.Waits = tree, left, "" })
		if err := n.mayComplete(); err != nil {
			return false, err
		}
		if !n.trees.Has(tree) {
			return false, nil
		}
		if err = units.Warm(ctx, m.ref); err == nil {
			failures = 0
			left -= m.bytes
		} else if failures++; failures == completeFailures || ctx.Err() != nil {
			return false, fmt.Errorf("complete tree %s: %w", tree.Short(), err)
		}
		if before, err = n.pay(ctx, units, before); err != nil {
			return false, err
		}
	}
	_, left, err = n.lacking(ctx, tree)
	return err == nil && left == 0, err
}

// pay waits until what came since is within the rate, and returns how much came in all.
func (n *Node) pay(ctx context.Context, units *store.Share, before int64) (total int64, err error) {
	for _, bytes := range units.Received() {
		total += bytes
	}
	n.completion.change(func(s *CompletionStatus) { s.Fetched += total - before })
	for due := total - before; due > 0 && err == nil; due -= completeBurst {
		err = n.completion.limiter.WaitN(ctx, int(min(due, completeBurst)))
	}
	return total, err
}

// lacking lists the units that are not here of a tree, and how many bytes of its
// chunks they have.
func (n *Node) lacking(ctx context.Context, tree chunk.ID) (missing []unitChunks, bytes int64, err error) {
	missing, _, err = n.missing(ctx, tree)
	for _, m := range missing {
		bytes += m.bytes
	}
	return missing, bytes, err
}

// makeLocal makes a tree's local device. That there is no room for it is no failure.
func (n *Node) makeLocal(ctx context.Context, tree chunk.ID) error {
	n.completion.change(func(s *CompletionStatus) { s.Tree, s.Left, s.Waits = tree, 0, "" })
	err := n.trees.MakeLocal(ctx, tree)
	switch {
	case err == nil:
		n.completion.change(func(s *CompletionStatus) { s.Devices++ })
		n.log.Info("a tree has a local device: mounts from now on do without the daemon", "tree", tree.Short())
	case errors.Is(err, trees.ErrNotCached):
		return nil // it went meanwhile
	}
	return err
}
