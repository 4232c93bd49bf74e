// Package collect frees what no image needs any more, as a job of the hub.
//
// A run first forgets holders that no longer report. Then it removes, in this order: trees that
// have had no image for a while and no holder, with all that is known about their starts; chains
// that neither an image nor a tree has; layers that no chain has; and packs without a chunk that a
// layer has. So everything that is left is needed by something above it. If many chunks of a pack
// are not needed, the run copies the needed ones into a new pack (rewrite.go), and renews the
// locations that name the old pack. If locations cannot be renewed, because an object is damaged,
// the packs that they name stay, and the result says so. The last step deletes what the hub's
// registry does not need (package blobs).
//
// A run changes the catalog in small transactions. Each transaction checks again that nothing needs
// what it removes. The objects are deleted after the transaction. A run has no state of its own: if
// it is killed, the next run goes on with what is left.
//
// Package catalog keeps publications and removals apart (collected.go).
package collect

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lighter/hub/blobs"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/holders"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

const (
	// JobKind is the kind of the job, and jobKey the key of the only one.
	JobKind = "collect"
	jobKey  = "all"
	// retiredKind is the kind of jobs by which earlier releases collected the registry's blobs.
	// That is the last step of a run now.
	retiredKind = "blobs"

	// Bounds of one transaction. Packs have a few thousand chunks each.
	treesAtOnce  = 32
	chainsAtOnce = 200
	layersAtOnce = 64
	packsAtOnce  = 8

	// After each transaction a run pauses for restFactor times as long as the transaction took,
	// within these bounds. So ingestion and nodes have the catalog and the disk for themselves most
	// of the time.
	restFactor = 4
	leastRest  = 10 * time.Millisecond
	mostRest   = 2 * time.Second
)

// Config has the parts of a hub that a Collector uses.
type Config struct {
	Catalog   *catalog.Catalog
	Objects   *objects.Store
	Publisher *publish.Publisher
	Encoders  *encoder.Pool
	Holders   *holders.Service
	Blobs     *blobs.Collector
	Room      func(bytes int64) error // an error if this many more bytes would use up the disks' reserve
	Every     time.Duration           // between runs; 0: only on request. A change after New has no effect.
	Delay     time.Duration           // how long a tree stays after its last image was removed
	Keep      time.Duration           // how long a rewritten pack stays after the locations that name it were renewed
	Log       *slog.Logger
}

// Collector collects. It is safe for concurrent use.
type Collector struct {
	// Config may be changed before the first run.
	Config
	// Step is called before each step of a run (paced) and after it, and between a transaction and
	// the deletion of its objects. Tests end the process there.
	Step func(name string)

	jobs     *jobs.Queue
	planning sync.Mutex // held while Plan works: it reads much of the catalog
}

// New returns a collector, and adds its kind of jobs to the queue.
func New(config Config, q *jobs.Queue) *Collector {
	c := &Collector{Config: config, Step: func(string) {}, jobs: q}
	q.Retire(retiredKind)
	q.Add(jobs.Kind{Name: JobKind, Key: jobKey, Every: config.Every, AtOnce: 1, Run: c.run})
	return c
}

// Start makes a run begin at once, unless one is running. It returns the run's job.
func (c *Collector) Start(ctx context.Context) (catalog.Job, error) {
	j, err := c.Catalog.Jobs.Open(ctx, JobKind, jobKey)
	if err == nil && j.State == wire.JobRunning {
		return j, nil
	}
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return j, err
	}
	n, err := c.Catalog.Jobs.Add(ctx, catalog.Job{Kind: JobKind, Key: jobKey, ByUser: true}, 0)
	if err != nil {
		return j, err
	}
	c.jobs.Changed(JobKind, jobKey)
	return c.Catalog.Jobs.Get(ctx, n)
}

// Await waits until a job that Start has returned has ended, and sends its progress meanwhile. It
// returns what the job has done.
func (c *Collector) Await(
	ctx context.Context, job int64, send func(wire.Progress) error,
) (*wire.Collection, error) {
	if _, err := c.jobs.AwaitEnd(ctx, JobKind, jobKey, job, report.NewSender(send)); err != nil {
		return nil, err
	}
	return c.Last(ctx)
}

// Last returns what the last run has done, or nil if there was none.
func (c *Collector) Last(ctx context.Context) (*wire.Collection, error) {
	body, err := c.Catalog.Garbage.LastCollection(ctx)
	if err != nil || body == nil {
		return nil, err
	}
	last := &wire.Collection{}
	return last, json.Unmarshal(body, last)
}

// run collects once, as a job.
func (c *Collector) run(ctx context.Context, j *jobs.Running) error {
	r := &run{Collector: c, job: j, lease: j.Lease()}
	started := time.Now()
	err := r.collect(ctx)
	if err == nil && (r.done.Bytes > 0 || r.done.Trees > 0) {
		c.Log.Info("collection ended", "trees", r.done.Trees, "layers", r.done.Layers, "packs", r.done.Packs,
			"bytes", r.done.Bytes, "duration", time.Since(started))
	}
	return err
}

// run is one run of the collection.
type run struct {
	*Collector
	job   *jobs.Running
	lease catalog.Lease
	done  wire.Collection
	stuck catalog.Stuck // locations that renew could not renew, and the packs that they name
}

func (r *run) collect(ctx context.Context) error {
	if err := r.Holders.Expire(ctx); err != nil {
		return err
	}
	if err := r.Catalog.Garbage.NoteUnserved(ctx, r.lease); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		r.trees, r.chains, r.layers, r.renew, r.packs, r.renew, r.dropRewritten,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	deleted, err := r.Blobs.Collect(ctx, &r.job.Progress)
	addBlobs(&r.done, deleted)
	return errors.Join(err, r.keepResult(ctx))
}

// addBlobs adds what was deleted from the registry, or would be.
func addBlobs(to *wire.Collection, deleted blobs.Result) {
	to.Links, to.Blobs, to.Released, to.BlobBytes = deleted.Links, deleted.Blobs, deleted.Released, deleted.Bytes
}

// keepResult stores what the run has done.
func (r *run) keepResult(ctx context.Context) error {
	last, err := r.Last(ctx)
	if err != nil {
		return err
	}
	if last != nil {
		r.done.AllBytes = last.AllBytes
	}
	r.done.AllBytes += r.done.Bytes
	r.done.At = time.Now().UTC()
	body, err := json.Marshal(r.done)
	if err != nil {
		return err
	}
	return r.Catalog.Garbage.SetLastCollection(ctx, r.lease, body)
}

// paced calls a step, and then pauses in proportion to the time that the step took.
func (r *run) paced(ctx context.Context, name string, step func() error) error {
	begun := time.Now()
	r.Step("before " + name)
	err := step()
	r.Step("after " + name)
	if err == nil && !sleep.For(ctx, min(max(restFactor*time.Since(begun), leastRest), mostRest)) {
		err = context.Cause(ctx)
	}
	return err
}

// remove calls forget, which removes rows from the catalog. Then it deletes the objects with these
// keys that the catalog no longer knows.
func (r *run) remove(ctx context.Context, name string, keys []string, forget func(catalog.Claim) error) error {
	return r.paced(ctx, name, func() error {
		return r.Publisher.Delete(ctx, keys, func(claim catalog.Claim) error {
			err := forget(claim)
			r.Step("removed " + name)
			return err
		})
	})
}

// trees removes dead trees.
func (r *run) trees(ctx context.Context) error {
	all, err := r.Catalog.Garbage.UnservedTrees(ctx, r.Delay)
	if err != nil {
		return err
	}
	dead, total := deadOf(all)
	progress := r.job.Step("collect", "trees", total)
	for batch := range slices.Chunk(dead, treesAtOnce) {
		var keys []string
		for _, t := range batch {
			keys = append(keys, objects.IndexKey(t.Tree), objects.LocationsKey(t.Locations))
			for _, p := range t.Packs {
				keys = append(keys, objects.PackKey(p.ID))
			}
		}
		if err := r.remove(ctx, "trees", keys, func(claim catalog.Claim) error {
			n, bytes, err := r.Catalog.Garbage.ForgetTrees(ctx, claim, r.lease, r.Delay, batch)
			r.done.Trees += n
			r.done.Bytes += bytes
			progress.Add(int(bytes))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// chains removes dead chains, from the top down.
func (r *run) chains(ctx context.Context) error {
	for removed := int64(1); removed > 0; {
		if err := r.paced(ctx, "chains", func() (err error) {
			removed, err = r.Catalog.Garbage.ForgetChains(ctx, r.lease, chainsAtOnce)
			r.done.Chains += removed
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// layers removes dead layers.
func (r *run) layers(ctx context.Context) error {
	for removed := int64(1); removed > 0; {
		dead, err := r.Catalog.Garbage.DeadLayers(ctx, layersAtOnce)
		if err != nil || len(dead) == 0 {
			return err
		}
		var keys []string
		for _, diffID := range dead {
			keys = append(keys, objects.LayerKey(diffID))
		}
		if err := r.remove(ctx, "layers", keys, func(claim catalog.Claim) (err error) {
			removed, err = r.Catalog.Garbage.ForgetLayers(ctx, claim, r.lease, dead)
			r.done.Layers += removed
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// packs removes dead packs.
func (r *run) packs(ctx context.Context) error {
	marks, err := r.Catalog.Garbage.MarkChunks(ctx, nil)
	if err != nil {
		return err
	}
	dead, sparse, err := r.suspects(ctx, marks)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, p := range dead {
		total += p.Size
	}
	progress := r.job.Step("collect", "packs", total)
	for batch := range slices.Chunk(dead, packsAtOnce) {
		var keys []string
		for _, p := range batch {
			keys = append(keys, objects.PackKey(p.ID))
		}
		err := r.remove(ctx, "packs", keys, func(claim catalog.Claim) error {
			n, bytes, err := r.Catalog.Garbage.ForgetPacks(ctx, claim, r.lease, marks, &r.stuck, batch)
			r.done.Packs += n
			r.done.PackBytes += bytes
			r.done.Bytes += bytes
			progress.Add(int(bytes))
			return err
		})
		if errors.Is(err, catalog.ErrChanged) {
			return nil // locations that may name the packs have to be renewed first: the next run goes on
		}
		if err != nil {
			return err
		}
	}
	return r.rewrite(ctx, marks, sparse)
}

// sparsePack is a pack of which some chunks are needed and others are not. It does not list its
// chunks, to save memory: most packs are sparse in a hub from which many images were removed.
type sparsePack struct {
	n    int64 // the pack's number in the catalog
	size int64 // bytes
	dead int64 // bytes of chunks that are not needed
}

// isWorth reports whether a pack is to be rewritten.
func (p sparsePack) isWorth() bool { return p.dead*rewriteShare >= p.size }

// suspects returns the packs without a marked chunk, and those of which only some chunks are
// marked.
func (c *Collector) suspects(
	ctx context.Context, m *catalog.Marks,
) (dead []catalog.PackUse, sparse []sparsePack, err error) {
	numbers, err := c.Catalog.Garbage.SuspectPacks(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range numbers {
		p, err := c.Catalog.Garbage.PackUse(ctx, m, n)
		switch {
		case errors.Is(err, catalog.ErrNotFound):
		case err != nil:
			return nil, nil, err
		case p.IsDead():
			dead = append(dead, p)
		default:
			sparse = append(sparse, sparsePack{p.N, p.Size, p.Size - p.Live()})
		}
	}
	return dead, sparse, nil
}

// deadOf returns the dead ones among trees without an image, and their bytes.
func deadOf(trees []catalog.UnservedTree) (dead []catalog.UnservedTree, bytes int64) {
	for _, t := range trees {
		if !t.Dead {
			continue
		}
		dead = append(dead, t)
		bytes += t.Bytes
		for _, p := range t.Packs {
			bytes += p.Size
		}
	}
	return dead, bytes
}
