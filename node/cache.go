package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/store/disk"
)

// CacheStatus is what a node says of its cache.
type CacheStatus struct {
	disk.Stats
	Pins []disk.Pin `json:"pins"`
}

// CacheFreed is what went from the cache, and how it is since.
type CacheFreed struct {
	disk.Freed
	CacheStatus
}

// CacheScrubbed is what a scrub found, and how the cache is since.
type CacheScrubbed struct {
	Found disk.Scrubbed `json:"found"`
	Files int           `json:"damagedFiles"` // metadata images, and local devices
	CacheStatus
}

// CacheFetched says how far fetching is, in bytes of an image's chunks.
type CacheFetched struct {
	Here  int64  `json:"hereBytes"`
	All   int64  `json:"bytes"`
	Error string `json:"error,omitempty"` // it has ended, and why
}

// openCache opens the cache. Without one a node still serves: slower, as each read
// that the kernel does not answer from memory goes over the network.
func openCache(config Config, log *slog.Logger) *disk.Cache {
	limits := disk.Limits{Size: int64(config.CacheSize), Low: disk.Space(config.FreeLow), High: disk.Space(config.FreeHigh)}
	dir := filepath.Join(config.Root, "cache")
	cache, err := disk.Open(dir, limits, log)
	if err != nil {
		log.Error("the node runs without a cache; it tries again every minute", "cause", err)
		return disk.Absent(err, dir, limits, log)
	}
	return cache
}

func (n *Node) cacheStatus() CacheStatus { return CacheStatus{n.cache.Stats(), n.cache.Pins()} }

// scrubPause is the time between two scrubs.
const scrubPause = time.Hour

// scrub verifies the cache, and the metadata images that are mounted, again and
// again, slowly, until ctx is done.
func (n *Node) scrub(ctx context.Context) {
	for n.config.ScrubRate > 0 && ctx.Err() == nil {
		if found, err := n.cache.Scrub(ctx, int64(n.config.ScrubRate)); err == nil {
			n.log.Info("the cache was verified", "bytes", found.Bytes, "damaged", found.Damaged)
		} else if ctx.Err() == nil {
			n.log.Warn("the cache was not verified to its end", "bytes", found.Bytes, "cause", err)
		}
		if _, err := n.trees.Scrub(ctx, int64(n.config.ScrubRate)); err != nil {
			return
		}
		select {
		case <-time.After(scrubPause):
		case <-ctx.Done():
		}
	}
}

// pin keeps the chunks of an image in the cache, as far as they are there and as
// they come.
func (n *Node) pin(ctx context.Context, name string) error {
	tree, label, err := n.findTree(ctx, name)
	if err != nil {
		return err
	}
	set, err := n.chunksOf(ctx, tree)
	if err != nil {
		return err
	}
	if err := n.cache.Pin(tree, label, set); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return nil
}

// unpin undoes pin, also of an image that is not here any more.
func (n *Node) unpin(ctx context.Context, name string) error {
	id, known := chunk.ID{}, []string{}
	for _, p := range n.cache.Pins() {
		if pinned := (ImageStatus{Image: p.Label, Tree: p.ID}); pinned.is(name) {
			id = p.ID
		}
		known = append(known, p.Label)
	}
	if id.IsZero() {
		tree, _, err := n.findTree(ctx, name)
		if err != nil && !errors.Is(err, errNoImage) {
			return err
		}
		id = tree
	}
	if was, err := n.cache.Unpin(id); err != nil || was {
		return err
	}
	return fmt.Errorf("%q is not pinned; pinned: %s", name, listed(known))
}

// evict frees what only this image has of the cache, among the images on this
// machine.
func (n *Node) evict(ctx context.Context, name string) (freed disk.Freed, err error) {
	tree, _, err := n.findTree(ctx, name)
	if err != nil {
		return freed, err
	}
	set, err := n.chunksOf(ctx, tree)
	if err != nil {
		return freed, err
	}
	trees, err := n.trees.List()
	if err != nil {
		return freed, err
	}
	for _, other := range trees {
		if other == tree {
			continue
		}
		err := n.trees.Chunks(ctx, other, func(ref chunk.Ref) { set.Remove(ref.ID) })
		if err != nil && n.trees.Has(other) {
			return freed, fmt.Errorf("it is not clear what only %s needs: %w", name, err)
		}
	}
	freed = n.cache.Evict(set)
	freed.Bytes += n.trees.DropLocal(tree)
	return freed, nil
}

func (n *Node) chunksOf(ctx context.Context, tree chunk.ID) (*disk.Set, error) {
	set := &disk.Set{}
	err := n.trees.Chunks(ctx, tree, set.Add)
	return set, err
}

const (
	// fetchUnits is how many units fetch asks for at a time, fetchRounds how often
	// it looks again for what did not come.
	fetchUnits  = 8
	fetchRounds = 3
	// fetchTold is the time between two reports.
	fetchTold = 200 * time.Millisecond
)

// fetch brings all of an image into the cache, behind those who read, and tells
// how far it is until it returns.
func (n *Node) fetch(ctx context.Context, name string, tell func(CacheFetched)) error {
	tree, _, err := n.findTree(ctx, name)
	if err != nil {
		return err
	}
	var all int64
	var came atomic.Int64
	defer func() { tell(CacheFetched{Here: came.Load(), All: all}) }()
	for range fetchRounds {
		var missing []unitChunks
		if missing, all, err = n.missing(ctx, tree); err != nil {
			return err
		}
		lacking := int64(0)
		for _, m := range missing {
			lacking += m.bytes
		}
		came.Store(all - lacking)
		if lacking == 0 {
			if !n.config.LocalDevice {
				return nil
			}
			if err := n.makeLocal(ctx, tree); err != nil { // what was asked for is done
				n.log.Warn("an image that is here as a whole has no local device", "cause", err)
			}
			return nil
		}
		if err = n.fetchMissing(ctx, missing, &came, func() { tell(CacheFetched{Here: came.Load(), All: all}) }); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	missing, _, failed := n.missing(ctx, tree)
	if len(missing) > 0 || failed != nil {
		return fmt.Errorf("not all of %s is in the cache: %w", name, errors.Join(err, failed, errNotKept))
	}
	return nil
}

// errNotKept says that what was fetched is not in the cache; why, its status says.
var errNotKept = errors.New("some of it did not come or was not kept, see `lighter cache`")

// unitChunks are the chunks of one unit that are not here: one of them stands for
// all.
type unitChunks struct {
	ref   chunk.Ref
	bytes int64
}

// missing lists what is not here of a tree, pack after pack, and how many bytes it has
// in all.
func (n *Node) missing(ctx context.Context, tree chunk.ID) (missing []unitChunks, all int64, err error) {
	err = n.trees.Chunks(ctx, tree, func(ref chunk.Ref) {
		all += int64(ref.Length)
		if n.cache.Has(ref.ID) {
			return
		}
		if last := len(missing) - 1; last >= 0 && missing[last].join(ref, int64(ref.Length)) {
			return
		}
		missing = append(missing, unitChunks{ref, int64(ref.Length)})
	})
	return inPackOrder(missing), all, err
}

// inPackOrder puts units that are listed as the device has their chunks, some of them
// several times, in the order in which their packs have them.
func inPackOrder(missing []unitChunks) []unitChunks {
	packs := map[chunk.ID]int{}
	for _, m := range missing {
		if _, known := packs[m.ref.Unit.Pack]; !known {
			packs[m.ref.Unit.Pack] = len(packs)
		}
	}
	slices.SortStableFunc(missing, func(a, b unitChunks) int {
		return cmp.Or(cmp.Compare(packs[a.ref.Unit.Pack], packs[b.ref.Unit.Pack]), cmp.Compare(a.ref.Unit.N, b.ref.Unit.N))
	})
	once := missing[:0]
	for _, m := range missing {
		if last := len(once) - 1; last < 0 || !once[last].join(m.ref, m.bytes) {
			once = append(once, m)
		}
	}
	return once
}

// join adds bytes of a chunk, if it is of the same unit.
func (u *unitChunks) join(ref chunk.Ref, bytes int64) bool {
	same := !ref.Unit.IsZero() && u.ref.Unit == ref.Unit
	if same {
		u.bytes += bytes
	}
	return same
}

func (n *Node) fetchMissing(ctx context.Context, missing []unitChunks, came *atomic.Int64, tell func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan struct{})
	go func() {
		defer close(told)
		for {
			tell()
			select {
			case <-time.After(fetchTold):
			case <-ctx.Done():
				return
			}
		}
	}()
	units := n.units.Share()
	var group errgroup.Group // one that fails does not end the others
	group.SetLimit(fetchUnits)
	for _, m := range missing {
		group.Go(func() error {
			if err := units.Warm(ctx, m.ref); err != nil {
				return err
			}
			came.Add(m.bytes)
			return nil
		})
	}
	err := group.Wait()
	cancel()
	<-told
	return err
}

// findTree finds the tree of an image by a word that stands for it (see Images).
// label is what people know it by: its reference, if it has one.
func (n *Node) findTree(ctx context.Context, word string) (tree chunk.ID, label string, err error) {
	status, err := n.Status(ctx)
	if err != nil {
		return tree, "", err
	}
	found, names, known := map[chunk.ID]string{}, []string{}, false
	here := map[string]chunk.ID{} // trees by chain; what is mounted for people only has its chain
	for _, s := range n.chains.Statements() {
		if n.trees.Has(s.Tree) {
			here[s.Chain] = s.Tree
		}
	}
	for _, image := range status.known() {
		image.Tree = here[image.Chain]
		if image.is(word) {
			known = true
			found[image.Tree] = cmp.Or(found[image.Tree], image.Image, word)
		}
		if !image.Tree.IsZero() {
			names = append(names, cmp.Or(image.Image, image.Chain))
		}
	}
	delete(found, chunk.ID{})
	switch {
	case len(found) == 1:
		for tree, label = range found {
		}
		return tree, label, nil
	case len(found) > 1:
		return tree, "", fmt.Errorf("%q stands for %d trees: say more of its name", word, len(found))
	case known:
		return tree, "", fmt.Errorf("the tree of %q is not here, so nothing of it is in the cache; there are: %s", word, listed(names))
	}
	return tree, "", noImage(word, names)
}

// listed writes names for an error: not too many of them.
func listed(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > 20:
		return strings.Join(names[:20], ", ") + fmt.Sprintf(", and %d more", len(names)-20)
	}
	return strings.Join(names, ", ")
}
