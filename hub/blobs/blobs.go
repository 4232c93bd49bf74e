// Package blobs deletes what nothing needs from the hub's registry, beside pushes and copies. It is
// the last step of a collection (package collect). It deletes
//
//   - manifests and blobs that no tag and no image of the catalog names,
//   - links of repositories to these,
//   - layers that need not be stored (images.KeepBlobs),
//   - uploads that nobody has finished.
//
// A run marks first: it reads what tags and images name. Then it sweeps: it deletes what is not
// marked, unless a client has relied on it within the day before the run. The catalog has the time
// when a client last pushed, mounted, copied or looked for a blob (catalog.Blobs), and a deletion
// begins with a comparison with that time. A client that looks for a blob while it is being deleted
// waits, and then finds that the blob is missing. So a client that has found a blob can rely on it.
//
// If an image's manifest is lost, the blobs that the catalog knows of the image stay, and so does
// all that its repository links. If the manifests of most images are lost, it is probably not the
// right registry, and nothing is deleted.
//
// While a backup is being made, nothing is deleted: its catalog may name more than this one. The
// next run deletes it.
//
// Before a run deletes layers that other registries have, it asks these. It does so in random order
// and for a limited time, so that registries which answer slowly or not at all neither delay the
// run nor keep it from asking others. The next run asks again.
//
// A run that was interrupted begins again; what was deleted stays deleted.
//
// Hazards: a run has the digests of all manifests and blobs in memory, 200 bytes each. If a storage
// carries out a deletion half a minute late, that may delete what was pushed anew.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	uploadAge    = 24 * time.Hour
	defaultAsk   = 15 * time.Minute
	defaultLease = 40 * time.Second
	maxNesting   = 4 // of indexes in indexes
)

// Config says what is collected.
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
	// Delay is how long nobody has relied on what is deleted. It is set before the first run.
	Delay time.Duration
	// Lease is how long a blob may be locked by its deletion. Half of it bounds the deletion. It is
	// set before the first run.
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
	Links    int64 // of repositories, to manifests and blobs
	Blobs    int64 // and manifests that nothing named
	Released int64 // layers that need not be stored
	Bytes    int64 // of Blobs and Released
}

// run is one collection.
type run struct {
	*Collector
	dry      bool                       // nothing is changed
	before   time.Time                  // what is deleted was not relied on since then
	images   map[string][]catalog.Image // by repository
	upstream map[string]map[string]bool // layers by repository that other registries have
	live     map[string]bool            // digests that are named
	needed   map[string]bool            // those of live that have to be stored
	layers   map[string][]string        // layers, with the repositories that do not need them stored
	settled  int                        // images that are ready or stored: their manifests were there
	lost     int                        // those of settled with a manifest that the registry lacks now
	result   Result
}

// newRun returns a run. A dry one changes nothing.
func (c *Collector) newRun(dry bool) *run {
	return &run{Collector: c, dry: dry, images: map[string][]catalog.Image{}, upstream: map[string]map[string]bool{},
		live: map[string]bool{}, needed: map[string]bool{}, layers: map[string][]string{}}
}

// Collect collects once. It returns what it has deleted, also with an error.
func (c *Collector) Collect(ctx context.Context, progress *report.Progress) (Result, error) {
	started, r := time.Now(), c.newRun(false)
	err := c.final(ctx, r.collect(ctx, progress))
	if r.result != (Result{}) {
		c.config.Log.Info("collected the registry's blobs", "links", r.result.Links, "blobs", r.result.Blobs,
			"released", r.result.Released, "bytes", r.result.Bytes, "duration", time.Since(started))
	}
	return r.result, err
}

// final returns an error as away.Final if it is about files of the registry, and the storage
// answers: otherwise the collection would run again at once, and end like that again.
func (c *Collector) final(ctx context.Context, err error) error {
	if !errors.Is(err, registry.ErrUnavailable) || catalog.IsAway(err) || c.config.Registry.IsAway(ctx, err) {
		return err
	}
	return away.Final(fmt.Errorf("the registry's blobs stay, as some of its files cannot be read: "+
		"run lighter fsck: %w", err))
}

// Plan returns what Collect would delete now. It changes nothing and does not ask other registries:
// of Released, Collect deletes those that these still have.
func (c *Collector) Plan(ctx context.Context) (Result, error) {
	r := c.newRun(true)
	err := r.collect(ctx, &report.Progress{})
	return r.result, err
}
