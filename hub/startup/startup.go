// Package startup makes startup packs from the traces that nodes report, so that the next starts of
// an image are faster.
//
//	recordings.go  merges traces into the recordings kept of each tree
//	senders.go     bounds what one sender adds
//	layout.go      makes layouts: plans a tree's startup packs (package plan), also from a guess
//	draft.go       writes the packs and locations of a layout, and publishes them
//	recompress.go  recompresses packs at a higher level once their layout has stayed for a while
//	quota.go       evicts the startup packs of the least recently used trees
//	describe.go    shows users a tree's workloads and startup packs
//
// A layout says which startup packs a tree has, and with that where nodes find its chunks. Nodes
// learn it as the tree's locations. They request newer ones when they pull or mount the tree again,
// once a day while it is mounted, or when one of its units is gone.
//
// All of it is a hint. Traces are not trusted: an absurd, stale or invented trace wastes a bounded
// number of bytes, and never changes what a container reads.
package startup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// Timing has the service's delays. Tests change them before Run.
type Timing struct {
	MergeDelay time.Duration // how long to wait for more traces of a tree before its layout is made
	Recompress time.Duration // how long a layout must be unchanged before its packs are recompressed
	Keep       time.Duration // how long retired startup packs, and traces of removed images, are kept
	Regain     time.Duration // how long a tree that has lost its startup packs for lack of room waits for new ones
}

// defaultTiming is the timing in production. With a shorter Regain, a hub that has more trees in
// use than room for their packs would make packs all the time.
var defaultTiming = Timing{MergeDelay: 3 * time.Second, Recompress: 20 * time.Second, Keep: 7 * 24 * time.Hour,
	Regain: time.Hour}

// Images says how the containers of an image run.
type Images interface {
	RunConfig(ctx context.Context, image catalog.Image) (v1.ImageConfig, error)
}

// Config has the parts of a hub that a Service uses.
type Config struct {
	Catalog   *catalog.Catalog
	Objects   *objects.Store
	Publisher *publish.Publisher
	Encoders  *encoder.Pool
	Images    Images
	Jobs      *jobs.Queue
	Bounds    *Bounds
	Limit     int64 // bytes of all startup packs; 0: the default (ordinaryShare, leastLimit)
	Log       *slog.Logger
}

// Bounds bounds what a process does at a time, and what it remembers, for all its domains.
type Bounds struct {
	making     *semaphore.Weighted // has one slot: one layout is made at a time
	writeSlots *semaphore.Weighted // requests with traces, and changes of recordings
	readSlots  *semaphore.Weighted // descriptions and exports

	senders senders
	sizes   deviceSizes
	uses    *semaphore.Weighted // has maxUsed slots, for last uses of trees in memory
}

// NewBounds returns the bounds of a process.
func NewBounds() *Bounds {
	return &Bounds{making: semaphore.NewWeighted(1), writeSlots: semaphore.NewWeighted(maxWrites),
		readSlots: semaphore.NewWeighted(maxReads), uses: semaphore.NewWeighted(maxUsed)}
}

// Service keeps traces and makes startup packs. It is safe for concurrent use.
type Service struct {
	Timing *Timing

	config     Config
	trees      *trees
	recordings *recordings
	quota      *quota
	maker      *maker

	*Bounds
	taken, refused atomic.Int64 // calls of Take without and with an error
}

// New returns a service, and adds its kinds of jobs to the queue c.Jobs.
func New(c Config) *Service {
	timing := defaultTiming
	s := &Service{Timing: &timing, config: c, Bounds: c.Bounds}
	s.trees = newTrees(&c)
	s.recordings = &recordings{catalog: c.Catalog, senders: &c.Bounds.senders, log: c.Log}
	s.quota = &quota{catalog: c.Catalog, limit: c.Limit, timing: s.Timing, log: c.Log, room: c.Bounds.uses,
		used: map[chunk.ID]time.Time{}}
	s.maker = &maker{Config: c, trees: s.trees, recordings: s.recordings, quota: s.quota, timing: s.Timing}
	c.Jobs.Add(jobs.Kind{Name: catalog.LayoutJob, AtOnce: 1, Tries: maxTries, Run: s.maker.run,
		Pauses: sleep.Backoff{First: time.Minute, Most: 2 * time.Minute}})
	c.Jobs.Add(jobs.Kind{Name: RecompressJob, AtOnce: 1, Run: s.maker.recompress})
	return s
}

// Run writes uses of trees to the catalog and calls Sweep, at intervals, until ctx ends. The jobs
// that make layouts and recompress packs run in the queue.
func (s *Service) Run(ctx context.Context) error {
	sweep := time.NewTimer(0)
	defer sweep.Stop()
	note := time.NewTicker(storeUsesEvery)
	defer note.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeUsesTimeout)
			defer cancel()
			return s.quota.store(last)
		case <-note.C:
			if err := s.quota.store(ctx); err != nil && ctx.Err() == nil {
				s.config.Log.Error("cannot store uses of trees", "err", err)
			}
		case <-sweep.C:
			now, err := s.config.Catalog.Now(ctx)
			if err == nil {
				err = s.Sweep(ctx, now.Add(-s.Timing.Keep))
			}
			if err != nil && ctx.Err() == nil {
				s.config.Log.Error("cannot sweep startup packs", "err", err)
			}
			sweep.Reset(sweepEvery)
		}
	}
}

// Sweep deletes startup packs that were retired before a time of the database's clock, and later
// ones beyond keepBytes. It queues layouts without packs for trees that have had neither an image
// nor a holder since then, and for the least recently used trees if all startup packs exceed the
// limit.
func (s *Service) Sweep(ctx context.Context, before time.Time) error {
	if err := s.config.Catalog.Starts.Unserved(ctx, before); err != nil {
		return err
	}
	if err := s.quota.enforce(ctx); err != nil {
		return err
	}
	limit, err := s.Limit(ctx)
	if err != nil {
		return err
	}
	for more := true; more; {
		if more, err = s.dropRetired(ctx, before, limit); err != nil {
			return err
		}
	}
	return nil
}

// dropRetired deletes some of the retired startup packs that Sweep deletes. It reports whether
// there were any.
func (s *Service) dropRetired(ctx context.Context, before time.Time, limit int64) (bool, error) {
	c := s.config.Catalog
	now, err := c.Now(ctx)
	if err != nil {
		return false, err
	}
	ids, err := c.Starts.Retired(ctx, before, now.Add(-keepLeast), min(keepBytes, limit), dropAtOnce)
	if err != nil || len(ids) == 0 {
		return false, err
	}
	var keys []string
	for _, id := range ids {
		keys = append(keys, objects.PackKey(id))
	}
	return true, s.config.Publisher.Delete(ctx, keys, func(claim catalog.Claim) error {
		return c.Starts.DropRetired(ctx, claim, ids)
	})
}

// Limit returns how many bytes all startup packs together may take. Retired ones do not count.
func (s *Service) Limit(ctx context.Context) (int64, error) { return s.quota.bytes(ctx) }

// Used records that a tree was used: a start of it is likely.
func (s *Service) Used(tree chunk.ID) { s.quota.use(tree) }

// Take stores a trace of a tree that a ready image has or somebody holds. The trace is merged into
// the tree's recordings when the tree's layout is made. body is the trace as package trace encodes
// it. sender is the result of SenderOf. Errors are report.ErrInvalid, report.ErrBusy,
// report.ErrSenderFull if the sender has sent enough traces of this tree, catalog.ErrFull if too
// many traces wait to be merged, catalog.ErrNotFound and objects.ErrNotFound.
func (s *Service) Take(ctx context.Context, tree chunk.ID, sender string, body []byte) (err error) {
	defer func() {
		if err != nil {
			s.refused.Add(1)
		} else {
			s.taken.Add(1)
		}
	}()
	if err := enter(ctx, s.writeSlots, 1); err != nil {
		return err
	}
	defer s.writeSlots.Release(1)
	size, err := s.trees.deviceSize(ctx, tree)
	if err != nil {
		return err
	}
	t, err := trace.Decode(body, tree, size)
	if err != nil {
		return fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if len(t.Reads) == 0 {
		return nil
	}
	if err := s.recordings.add(ctx, tree, sender, t, s.Timing.MergeDelay); err != nil {
		return err
	}
	s.Used(tree)
	s.requested(tree)
	return nil
}

// Import adds exported recordings, perhaps of another image, to those of a tree. Errors are
// report.ErrInvalid, report.ErrBusy, catalog.ErrFull and catalog.ErrNotFound, as for Take.
func (s *Service) Import(ctx context.Context, tree chunk.ID, text []byte) error {
	if err := enter(ctx, s.writeSlots, maxWrites); err != nil { // the text may be long
		return err
	}
	defer s.writeSlots.Release(maxWrites)
	all, err := trace.ParseText(text)
	if err != nil {
		return fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if len(all) == 0 {
		return nil
	}
	if err := s.config.Catalog.Starts.AddRecordings(ctx, tree, compressText(text)); err != nil {
		return err
	}
	s.Used(tree)
	s.requested(tree)
	return nil
}

// Export returns the recordings of a tree in package trace's text encoding, without traces that
// were not merged yet. Errors are report.ErrBusy and the catalog's.
func (s *Service) Export(ctx context.Context, tree chunk.ID) ([]byte, error) {
	if err := enter(ctx, s.readSlots, 1); err != nil {
		return nil, err
	}
	defer s.readSlots.Release(1)
	kept, _, err := s.recordings.load(ctx, tree)
	return trace.EncodeText(kept), err
}

// Forget removes the workload whose ID begins with workload from a tree's recordings. If workload
// is empty it removes all recordings, and traces that were not merged yet. Errors are
// report.ErrBusy, report.ErrInvalid if several workloads match, catalog.ErrNotFound if none does,
// and other errors of the catalog.
func (s *Service) Forget(ctx context.Context, tree chunk.ID, workload string) (f wire.Forgotten, err error) {
	if err := enter(ctx, s.writeSlots, 1); err != nil {
		return f, err
	}
	defer s.writeSlots.Release(1)
	f, err = s.recordings.forget(ctx, tree, workload)
	s.requested(tree)
	return f, err
}

// requested tells the queue that a layout was requested.
func (s *Service) requested(tree chunk.ID) { s.config.Jobs.Changed(catalog.LayoutJob, tree.String()) }

// Await waits until a tree's layout is up to date, its job is paused, an attempt has failed, or ctx
// ends. Callers should not wait for long, as layouts are only hints.
func (s *Service) Await(ctx context.Context, tree chunk.ID) error {
	s.requested(tree)
	silent := report.NewSender(func(wire.Progress) error { return nil })
	return s.config.Jobs.Await(ctx, catalog.LayoutJob, tree.String(), silent, func(ctx context.Context) (bool, error) {
		j, err := s.config.Catalog.Jobs.Open(ctx, catalog.LayoutJob, tree.String())
		if errors.Is(err, catalog.ErrNotFound) {
			return true, nil
		}
		return j.State == wire.JobPaused || j.State == wire.JobQueued && j.Error != "", err
	})
}

// Counts are the service's figures since the hub started.
type Counts struct {
	Taken, Refused int64 // traces of nodes that were accepted, and those that were not
	Laid, GivenUp  int64 // layouts that were made, and those that were given up after maxTries failures
}

// Counts returns the figures.
func (s *Service) Counts() Counts {
	return Counts{s.taken.Load(), s.refused.Load(), s.maker.made.Load(), s.maker.givenUp.Load()}
}

// enter acquires n slots within enterTimeout. The caller releases them. The error is
// report.ErrBusy.
func enter(ctx context.Context, slots *semaphore.Weighted, n int64) error {
	wait, cancel := context.WithTimeout(ctx, enterTimeout)
	defer cancel()
	if slots.Acquire(wait, n) != nil {
		return report.ErrBusy
	}
	return nil
}

// isMissing reports whether an error means that the catalog has no such entry, or that an object
// does not exist.
func isMissing(err error) bool {
	return errors.Is(err, catalog.ErrNotFound) || errors.Is(err, objects.ErrNotFound)
}
