// Package fsck compares the hub's stores with each other: the bucket with the catalog, both ways,
// the registry's tags, manifests and blobs with the images, and the catalog with itself. Package
// verify reads one image from end to end instead.
//
// Three kinds of jobs do that. A sweep runs daily: it deletes objects that the catalog does not
// know, and repairs those that are missing. A scrub reads a part of the objects every few hours,
// until it has read all of them, and repairs damaged ones. A check runs on request, looks at
// everything, and reports what it found.
//
// All of them run beside everything else. An object that looks wrong may be about to be published
// or deleted. So an object counts only if no publisher has claimed it, and if bucket and catalog
// still differ when both are asked again. Unknown objects are deleted by package publish, after a
// day. If most objects are unknown, a sweep deletes none: the hub may have got the wrong catalog or
// bucket.
//
// Repair makes lost objects again from others: chunks and layer records from the blobs of the
// images, indexes and locations from layer records. It does not change what cannot be made again.
// The registry decides what names stand for: the catalog follows it. If the registry lacks the
// manifests of most names, the catalog keeps them until a user confirms that it is the right one.
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
	// minAge is the age of an unknown object below which it is not deleted. It is longer than any
	// publication takes, though claims make it safe anyway.
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
	// ScrubDays is the time in which a scrub reads all objects; 0: there is no scrub.
	ScrubDays int64
	Log       *slog.Logger
}

// Names compares the names of images in the catalog with the registry.
type Names interface {
	// Difference says which manifest of a name the registry lacks, or that the catalog does not
	// list what it has. Both are empty if they agree.
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
		run := k.Run
		k.Key, k.AtOnce = jobKey, 1
		k.Run = func(ctx context.Context, j *jobs.Running) error {
			err := run(ctx, j)
			if errors.Is(err, registry.ErrUnavailable) && !c.isAway(ctx, err) {
				return away.Final(err) // some files of the registry cannot be read: waiting does not help
			}
			return err
		}
		c.Jobs.Add(k)
	}
	return c
}

// isAway reports whether an error says that a store of the hub is away, and the store does not
// answer now either. If it answers, the error is about what was read. Another registry that has the
// blob of a layer is no store of the hub: it may be away for good.
func (c *Checker) isAway(ctx context.Context, err error) bool {
	return catalog.IsAway(err) || c.Objects.IsAway(ctx, err) || c.Registry.IsAway(ctx, err)
}
