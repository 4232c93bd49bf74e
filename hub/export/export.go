// Package export keeps a mirror of a domain up to date: a copy, as files, of what nodes need. Any
// web server or object store that serves the files at its root can answer nodes, also while the hub
// is stopped.
//
// The work is a job, so one process of the hub does it at a time, and it goes on after a restart. A
// run adds what is new, replaces what has changed, and removes what the hub itself no longer has.
// What nodes may still ask for stays as long as the hub keeps it: packs after their chunks were
// moved, the trees of removed images for as long as a node has them. The names of removed images go
// at once: no node begins to use them.
//
// A file that others name is written before them and removed after them. Before it writes a file,
// the job notes the file's path in the mirror (state). So whenever the job is killed, or the disk
// is full, the mirror only lacks files, and none is forgotten that is to be removed later.
//
// A mirror is a copy of one catalog. A hub with another one changes nothing in it: a wrong or empty
// database must not empty the mirror.
//
// Objects are verified before they are copied. The mirror is a holder of the trees of lower layers
// that it has (package holders): otherwise the hub might drop them and make them again and again.
package export

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/wire"
)

// JobKind is the kind of the jobs that export.
const JobKind = "export"

const (
	jobKey = "all"
	// every is the time between two runs, unless a new image begins one.
	every = 5 * time.Minute
	// newDelay is Exporter.NewDelay.
	newDelay = 10 * time.Second
	// checkEvery is Exporter.CheckEvery.
	checkEvery = 24 * time.Hour
	// batch is the number of trees whose paths are noted at a time.
	batch = 64
	// workers is the number of files that are written at a time.
	workers = 8
	// retryPause is Exporter.Pause.
	retryPause = time.Minute
	// maxReasons is the number of errors that a failed run reports.
	maxReasons = 5
)

// Images answers what nodes ask about images for which the catalog alone is not enough.
type Images interface {
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
	// Tree returns the statement about a chain. It makes the chain's tree if there is none.
	Tree(ctx context.Context, chain string) (*index.Statement, error)
}

// Holders receives what the mirror has.
type Holders interface {
	Report(ctx context.Context, held wire.Held, sender string) (wire.Unknown, error)
}

// Config has the parts of a hub's domain that the export uses.
type Config struct {
	Place   *Place
	Domain  string
	Catalog *catalog.Catalog
	Objects *objects.Store
	Images  Images
	Holders Holders
	Keys    []ed25519.PublicKey
	Jobs    *jobs.Queue
	Scratch string        // directory for temporary files
	Limiter *rate.Limiter // of bytes; shared by all domains
	Log     *slog.Logger
}

// Exporter exports a domain. It is safe for concurrent use.
type Exporter struct {
	Config
	// Step is called before each file is written or removed, with its path. After an error it is
	// not: so tests kill a run. It is set before the first run.
	Step func(path string) error
	// Pause is the time until the next attempt if the mirror's disk is full, or a store is away. It
	// is set before the first run.
	Pause time.Duration
	// CheckEvery is the time after which a run looks for each file of the mirror: somebody may have
	// removed some. It is changed only while no run is due.
	CheckEvery time.Duration
	// NewDelay is the time from a new image to the run that copies it. Meanwhile its first layout
	// is made, and further images may come. It is set before the first image.
	NewDelay time.Duration
}

// New returns an exporter, and adds its kind of jobs to the queue.
func New(c Config) *Exporter {
	e := &Exporter{Config: c, Step: func(string) error { return nil }, Pause: retryPause, CheckEvery: checkEvery,
		NewDelay: newDelay}
	c.Jobs.Add(jobs.Kind{Name: JobKind, Key: jobKey, Every: every, AtOnce: 1, Run: e.run})
	return e
}

// Start makes a run begin at once, or after the run that has begun already: that one may miss what
// is new now.
func (e *Exporter) Start(ctx context.Context) error { return e.start(ctx, 0) }

// StartForNew is Start, but the run begins after NewDelay, unless one is due earlier.
func (e *Exporter) StartForNew(ctx context.Context) error { return e.start(ctx, e.NewDelay) }

func (e *Exporter) start(ctx context.Context, delay time.Duration) error {
	if _, err := e.Catalog.Jobs.Add(ctx, catalog.Job{Kind: JobKind, Key: jobKey}, delay); err != nil {
		return err
	}
	e.Jobs.Changed(JobKind, jobKey)
	return nil
}

// NewLimiter returns a limit of bytes per second; 0: none.
func NewLimiter(perSecond int64) *rate.Limiter {
	const burst = 4 << 20
	limit := rate.Limit(perSecond)
	if perSecond == 0 {
		limit = rate.Inf
	}
	return rate.NewLimiter(limit, burst)
}

// Counts are figures for metrics.
type Counts struct {
	Completed time.Time // when a run last brought the mirror up to date; zero: never
	Begun     time.Time // when that run began, or a later one that has not ended
	Files     int64     // in the mirror, without units
	Bytes     int64     // written since the first run
	Errors    int64     // trees and images that could not be copied, since the first run
}

// Counts returns the figures.
func (e *Exporter) Counts(ctx context.Context) (Counts, error) {
	state, err := e.Catalog.Checks.Get(ctx, JobKind)
	return Counts{Completed: state.Ended, Begun: state.Begun, Files: state.Objects, Bytes: state.Bytes,
		Errors: state.Errors}, err
}

// run brings the mirror up to date, as a job.
func (e *Exporter) run(ctx context.Context, j *jobs.Running) (err error) {
	target, closeTarget, err := e.Place.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTarget()) }()
	known, err := e.Catalog.Checks.Get(ctx, JobKind)
	if err != nil {
		return err
	}
	r := &run{Exporter: e, target: stepped{target, e.Step}, job: j}
	if r.state, err = readState(ctx, target, e.Domain); err != nil {
		return err
	}
	if err = r.claim(ctx); err != nil {
		return err
	}
	r.full = time.Since(r.state.Checked) > e.CheckEvery
	began := time.Now()
	for looked := false; err == nil && (!looked || r.again.Swap(false)); looked = true {
		r.failed = nil
		err = r.all(ctx)
	}
	known.Objects, known.Bytes, known.Errors = int64(len(r.state.Files)), known.Bytes+r.bytes.Load(),
		known.Errors+int64(len(r.failed))
	if err == nil {
		err = r.reason()
	}
	keep := e.Catalog.Checks.Set
	if err == nil {
		keep = e.Catalog.Checks.Complete
	}
	if n := r.files.Load() + r.removed.Load(); n > 0 {
		e.Log.Info("the mirror was changed", "written", r.files.Load(), "removed", r.removed.Load(),
			"bytes", r.bytes.Load(), "duration", time.Since(began), "failed", len(r.failed))
	}
	if keepErr := keep(ctx, j.Lease(), JobKind, known); keepErr != nil && ctx.Err() == nil {
		err = errors.Join(err, keepErr)
	}
	if jobs.IsRetried(err) {
		err = &jobs.RetryError{Err: err, After: e.Pause}
	}
	return err
}

// reason returns the errors of what could not be copied, or nil.
func (r *run) reason() error {
	if len(r.failed) == 0 {
		return nil
	}
	err := errors.Join(r.failed[:min(len(r.failed), maxReasons)]...)
	return fmt.Errorf("the mirror lacks %d trees or images: %w", len(r.failed), err)
}

// hold reports the trees of lower layers that the mirror has, so that the hub keeps them. A report
// has a bounded number of trees. If there are more, the mirror is several holders.
func (r *run) hold(ctx context.Context, trees []chunk.ID) error {
	reports := slices.Collect(slices.Chunk(trees, wire.MaxHeld))
	for len(reports) < max(r.state.Holders, 1) { // what these held before is released
		reports = append(reports, nil)
	}
	if len(reports) > r.state.Holders {
		r.state.Holders = len(reports)
		if err := r.save(ctx); err != nil { // the hub gets to know the holders, so their IDs have to stay
			return err
		}
	}
	for i, part := range reports {
		if _, err := r.Holders.Report(ctx, wire.Held{Holder: fmt.Sprint(r.state.Holder, i), Kind: wire.HolderMirror,
			Name: "export", Trees: part}, ""); err != nil {
			return err
		}
	}
	return nil
}
