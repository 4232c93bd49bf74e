// Package blobs deletes what nothing needs from the hub's registry, beside pushes and copies:
//
//   - manifests and blobs that no tag and no image of the catalog names,
//   - links of repositories to such,
//   - layers that need not be stored (images.KeepBlobs),
//   - uploads that nobody has finished.
//
// A run marks first: it reads what tags and images name. Then it sweeps: it deletes what is not
// marked and what no client has relied on for a day before the run. The catalog knows that
// (catalog.Blobs): every push, mount and copy, and every look of a client for a blob, touches it, and
// deleting it is a comparison with that time. A client waits while a blob that it looks for is being
// deleted, and then finds that it is missing. So a push whose client has found a blob can rely on it.
//
// While a backup is being made, nothing is deleted: its catalog may name more than this one.
//
// A run that was interrupted begins again; what was deleted stays deleted.
//
// Hazard: a run has the digests of all manifests and blobs in memory, 200 bytes each. A deletion
// that a storage carries out after half a minute may delete what was pushed anew.
package blobs

import (
	"context"
	"log/slog"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/sleep"
)

const (
	// JobKind is the kind of the jobs that collect.
	JobKind = "blobs"
	jobKey  = "registry"

	defaultDelay = 24 * time.Hour
	uploadAge    = 24 * time.Hour
	every        = 24 * time.Hour // between two runs
	lookEvery    = 10 * time.Minute
	// lease is how long a blob may be locked by its deletion. Half of it bounds the deletion.
	lease      = 40 * time.Second
	maxNesting = 4 // of indexes in indexes
)

// Config says what is collected.
type Config struct {
	Catalog  *catalog.Catalog
	Registry *registry.Registry
	Upstream registry.Upstream
	Keep     images.KeepBlobs
	Jobs     *jobs.Queue
	Log      *slog.Logger
}

// Collector collects what the registry does not need. It is safe for concurrent use, but one job runs
// at a time.
type Collector struct {
	// Delay is how long nobody has relied on what is deleted. It is set before Run.
	Delay time.Duration
	// Marked is called between mark and sweep, if it is not nil. It is set before Run.
	Marked func()

	config Config
}

// New returns a collector, and adds its kind of jobs to the queue.
func New(c Config) *Collector {
	collector := &Collector{Delay: defaultDelay, config: c}
	c.Jobs.Add(jobs.Kind{Name: JobKind, AtOnce: 1, Run: func(ctx context.Context, j *jobs.Running) error {
		_, err := collector.Collect(ctx, &j.Progress)
		return err
	}})
	return collector
}

// Run queues a job once a day until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	for sleep.For(ctx, lookEvery) {
		queued, err := c.config.Catalog.Jobs.AddDue(ctx, Job(), every)
		if queued {
			c.config.Jobs.Changed(JobKind, jobKey)
		}
		if err != nil && ctx.Err() == nil {
			c.config.Log.Error("queue the collection of blobs", "err", err)
		}
	}
	return ctx.Err()
}

// Job returns the job that collects.
func Job() catalog.Job { return catalog.Job{Kind: JobKind, Key: jobKey, Priority: jobs.Low} }

// Result counts what a run has deleted.
type Result struct {
	Links    int // of repositories, to manifests and blobs
	Blobs    int // and manifests that nothing named
	Released int // layers that need not be stored
}

// run is one collection.
type run struct {
	*Collector
	before   time.Time                  // nobody has relied since then on what is deleted
	images   map[string][]catalog.Image // by repository
	upstream map[string]map[string]bool // layers by repository that other registries have
	live     map[string]bool            // digests that are named
	needed   map[string]bool            // of those, blobs that are to be stored
	layers   map[string][]string        // of those, layers, with the repositories that name them
	result   Result
}

// Collect collects once.
func (c *Collector) Collect(ctx context.Context, progress *report.Progress) (Result, error) {
	r := &run{Collector: c, images: map[string][]catalog.Image{}, upstream: map[string]map[string]bool{},
		live: map[string]bool{}, needed: map[string]bool{}, layers: map[string][]string{}}
	started := time.Now()
	err := r.collect(ctx, progress)
	if err == nil {
		c.config.Log.Info("collected the registry's blobs", "links", r.result.Links, "blobs", r.result.Blobs,
			"released", r.result.Released, "duration", time.Since(started))
	}
	return r.result, err
}
