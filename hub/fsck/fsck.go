// Package fsck compares the hub's stores: the bucket with the catalog, the registry's tags,
// manifests and blobs with the catalog's images, and the catalog's rows with each other. Package
// verify reads one image from end to end instead.
//
// Three kinds of jobs do that. A sweep runs daily. It deletes objects that the catalog does not
// know, and makes those again that the bucket lacks. A scrub runs every few hours. It reads the
// next part of the objects, and makes damaged ones again; then it reads the registry's blobs. A
// check runs on request. It compares all stores, and reports what it found. If the user wants that,
// it also reads the objects and blobs, and repairs.
//
// All of them run while the hub works. An object that looks wrong may be about to be published or
// deleted. A lost or damaged one counts only if the catalog still names it when its claim has
// ended, for which a job waits at most twice the lease of a claim. An unknown one counts only if
// nobody has claimed it, and if it is a day old; package publish deletes it.
// If most objects are unknown, a sweep deletes none: the hub may have got the wrong catalog or
// bucket.
//
// A repair makes lost objects again: chunks from damaged packs and from the images' blobs, layer
// records from blobs, indexes and locations from layer records. What it cannot make again stays as
// it is. Only damaged blobs of the registry are deleted, as clients would not push what exists. If
// catalog and registry differ about a name, the repair changes the catalog. But if the registry
// lacks the manifests of most names, the catalog keeps these names until a user confirms that the
// registry is the right one.
package fsck

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"lighter/format/tree"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
)

// The kinds of jobs. Each has one key.
const (
	KindCheck = "fsck"
	KindSweep = "sweep"
	KindScrub = "scrub"
	jobKey    = "all objects"
)

const (
	sweepEvery = 24 * time.Hour
	// minAge is the age of an unknown object below which it is not deleted. No publication takes as
	// long. Claims protect the objects of publications, too.
	minAge = 24 * time.Hour
)

// Config has the stores that a checker compares.
type Config struct {
	Catalog   *catalog.Catalog
	Objects   *objects.Store
	Registry  *registry.Registry
	Publisher *publish.Publisher
	Ingester  *ingest.Ingester
	Trees     *ingest.Trees
	Names     Names
	Limits    tree.Limits
	Jobs      *jobs.Queue
	// ScrubDays is the number of days in which the scrubs read all objects and blobs; 0: there is
	// no scrub.
	ScrubDays int64
	// Room returns an error if so many more bytes would use up the reserve of the disks.
	Room func(bytes int64) error
	Log  *slog.Logger
}

// Names compares the names of images in the catalog with the registry.
type Names interface {
	// Difference compares what a name stands for. missing says which manifest the registry lacks,
	// unlisted that the registry has one which the catalog does not list. Both are empty if catalog
	// and registry agree.
	Difference(ctx context.Context, name string) (missing, unlisted string, err error)
	// Settle makes the catalog agree with the registry about a name.
	Settle(ctx context.Context, name string) error
}

// Checker checks the stores. It is safe for concurrent use.
type Checker struct {
	// MinAge is the age of an unknown object from which it is deleted. It is set before use.
	MinAge time.Duration

	Config
}

// New returns a checker, and adds its kinds of jobs to the queue.
func New(config Config) *Checker {
	c := &Checker{MinAge: minAge, Config: config}
	scrubs := time.Duration(0)
	if c.ScrubDays > 0 {
		scrubs = scrubEvery
	}
	for _, k := range []jobs.Kind{{Name: KindCheck, Run: c.check}, {Name: KindSweep, Every: sweepEvery, Run: c.sweep},
		{Name: KindScrub, Every: scrubs, Run: c.scrub}} {
		k.Key, k.AtOnce, k.Run = jobKey, 1, c.endsIfUnreadable(k.Run)
		c.Jobs.Add(k)
	}
	return c
}

// endsIfUnreadable returns run so that the job fails if some files of the registry cannot be read,
// although its storage answers: waiting does not help. The storage may have come back after the
// read that failed, so run has a second attempt.
func (c *Checker) endsIfUnreadable(run jobs.Run) jobs.Run {
	return func(ctx context.Context, j *jobs.Running) (err error) {
		for range 2 {
			if err = run(ctx, j); !errors.Is(err, registry.ErrUnavailable) || c.isAway(ctx, err) {
				return err
			}
		}
		return away.Final(err)
	}
}

// isAway is away.IsStill for the stores that are checked.
func (c *Checker) isAway(ctx context.Context, err error) bool {
	return away.IsStill(ctx, err, catalog.ErrAway, c.Objects, c.Registry)
}
