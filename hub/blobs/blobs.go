// Package blobs deletes what nothing needs from the hub's registry, while clients push and jobs
// copy images. It is the last step of a collection (package collect). It deletes
//
//   - manifests and blobs that no tag and no image of the catalog names,
//   - links of repositories to these manifests and blobs,
//   - layers that need not be stored (images.KeepBlobs),
//   - uploads that were not finished within a day.
//
// A run marks first: it reads what tags and images name. Then it sweeps: it deletes what is not
// marked, unless a client has relied on it within the day before the run. The catalog has the time
// when a client last pushed, mounted, copied or looked for a blob (catalog.Blobs). A deletion first
// compares this time. A client that looks for a blob while it is being deleted waits, and then
// finds that the blob is missing. So a client that has found a blob can rely on it.
//
// A run also marks what those manifests name on which clients have relied within the day. Manifests
// of an image that has lost a name are among them. So a client that pulls an image gets all of it,
// although the image is removed meanwhile.
//
// Blobs and links are deleted in batches, a few of them at a time: the catalog locks a batch in one
// transaction, S3 deletes its files with one request, and another transaction unlocks it.
//
// If an image's manifest is lost, the blobs that the catalog knows of the image stay. All blobs
// that its repository links to stay, too. If the manifests of most images are lost, the registry's
// files are probably those of another hub, and no blobs are deleted.
//
// While a backup is made, no blobs are deleted: the backup's snapshot of the catalog may name blobs
// that the catalog no longer names. The next run deletes them.
//
// Before a run deletes layers that other registries should have, it asks these registries. It asks
// in random order and for a limited time. So a registry that answers slowly or not at all neither
// delays the run, nor prevents questions to other registries in each run.
//
// A run that was interrupted begins again; what was deleted stays deleted.
//
// Hazards: a run has the digests of all manifests and blobs in memory, 200 bytes each. If the
// storage carries out a deletion half a minute late, it may delete a blob that was pushed again.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/hub/upstream"
)

const (
	defaultDelay = 24 * time.Hour
	uploadAge    = 24 * time.Hour // unfinished uploads that are older are deleted
	defaultAsk   = 15 * time.Minute
	defaultLease = 40 * time.Second
)

// Config has the parts of a hub that a Collector uses, and which layers the registry stores (Keep).
type Config struct {
	Catalog  *catalog.Catalog
	Registry *registry.Registry
	Upstream *upstream.Reader
	Keep     images.KeepBlobs
	Log      *slog.Logger
}

// Collector collects what the registry does not need. It is safe for concurrent use, but one run
// collects at a time.
type Collector struct {
	// Delay is the time for which a client can rely on a blob after it last used it. It is set
	// before the first run.
	Delay time.Duration
	// Lease is how long blobs may be locked by the deletion of their batch. The deletion itself may
	// take half of Lease. It is set before the first run.
	Lease time.Duration
	// AskTime bounds the time for which a run asks other registries for layers. It is set before
	// the first run.
	AskTime time.Duration
	// Marked is called between mark and sweep, if it is not nil. It is set before the first run.
	Marked func()

	config Config
}

// New returns a collector.
func New(c Config) *Collector {
	return &Collector{Delay: defaultDelay, Lease: defaultLease, AskTime: defaultAsk, config: c}
}

// Result counts what a run has deleted, or would delete.
type Result struct {
	Links    int64 // links of repositories to manifests and blobs
	Blobs    int64 // blobs and manifests that nothing named
	Released int64 // layers that need not be stored
	Bytes    int64 // bytes of Blobs and Released
}

// run is one collection.
type run struct {
	*Collector
	dry      bool                       // nothing is changed
	before   time.Time                  // a blob that a client has used since then stays
	images   map[string][]catalog.Image // by repository
	upstream map[string]map[string]bool // digests of layers that other registries have, by repository
	recent   map[string]bool            // digests that clients have relied on since then
	live     map[string]bool            // digests that tags, images and recent manifests name
	needed   map[string]bool            // digests in live that have to be stored
	layers   map[string][]string        // layers, with the repositories that do not need them stored
	complete int                        // images that are ready or stored: their manifests had arrived
	lost     int                        // complete images of which the registry lacks a manifest now

	counting sync.Mutex // protects result while batches are deleted
	result   Result
}

// newRun returns a run. A dry run changes nothing.
func (c *Collector) newRun(dry bool) *run {
	return &run{Collector: c, dry: dry, images: map[string][]catalog.Image{}, upstream: map[string]map[string]bool{},
		recent: map[string]bool{},
		live:   map[string]bool{}, needed: map[string]bool{}, layers: map[string][]string{}}
}

// Collect collects once. It returns what it has deleted, also with an error; a batch that was
// deleted in part does not count.
func (c *Collector) Collect(ctx context.Context, progress *report.Progress) (Result, error) {
	started, r := time.Now(), c.newRun(false)
	err := c.final(ctx, r.collect(ctx, progress))
	if r.result != (Result{}) {
		c.config.Log.Info("collected the registry's blobs", "links", r.result.Links, "blobs", r.result.Blobs,
			"released", r.result.Released, "bytes", r.result.Bytes, "duration", time.Since(started))
	}
	return r.result, err
}

// final returns an error as away.Final if it is about files of the registry although the storage
// answers. Otherwise the queue would run the collection again and again, with the same error.
func (c *Collector) final(ctx context.Context, err error) error {
	if !errors.Is(err, registry.ErrUnavailable) || catalog.IsAway(err) || c.config.Registry.IsAway(ctx, err) {
		return err
	}
	return away.Final(fmt.Errorf("the registry's blobs stay, because some of its files cannot be read: "+
		"run lighter fsck: %w", err))
}

// Plan returns what Collect would delete now. It changes nothing and does not ask other registries.
// So Released may be too high: Collect deletes only layers that other registries still have.
func (c *Collector) Plan(ctx context.Context) (Result, error) {
	r := c.newRun(true)
	err := r.collect(ctx, &report.Progress{})
	return r.result, err
}
