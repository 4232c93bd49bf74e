package fsck

import (
	"context"
	"errors"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/sleep"
)

// sweepPause is the pause after each thousand objects, so that a sweep does not slow down others.
const sweepPause = time.Second

// fewUnknown is the number of unknown or lost objects up to which guard allows a change, even if
// there are hardly any others.
const fewUnknown = 8

// guard keeps a job from deleting, or making again, most of the objects: the bucket may be that of
// another hub. guard counts what the job has compared.
type guard struct{ all, unknown int }

// allows counts further objects: all of them, and those that are unknown or lost. It reports
// whether the job may delete or repair the latter. Of all that the job has compared until now, at
// most fewUnknown or one half may be unknown or lost.
func (g *guard) allows(all, unknown int) bool {
	g.all, g.unknown = g.all+all, g.unknown+unknown
	return unknown == 0 || g.unknown <= max(fewUnknown, g.all/2)
}

// sweep is a job that deletes unknown objects and makes missing ones again. If it was interrupted,
// it goes on after the last thousand objects that it had compared.
func (c *Checker) sweep(ctx context.Context, j *jobs.Running) error {
	state, err := c.Catalog.Checks.Get(ctx, KindSweep)
	if err != nil {
		return err
	}
	total, _, err := c.Catalog.Checks.ObjectBytes(ctx)
	if err != nil {
		return err
	}
	progress := j.Step("compare", "objects", total)
	var seen, lacks guard
	if err := c.compare(ctx, state.Place, func(last string, n int, d *differences) error {
		state.Errors += int64(len(d.unknown) + len(d.lost))
		if seen.allows(n, len(d.unknown)) {
			if err := c.deleteUnknown(ctx, d.unknown); err != nil {
				return err
			}
		} else {
			c.Log.Error("the catalog does not know most objects of the bucket, so they stay: perhaps it is another "+
				"hub's bucket, or the catalog is not the right one; run lighter fsck", "objects", len(d.unknown),
				"first", d.unknown[0])
		}
		if err := c.repairFew(ctx, &lacks, n, d.lost, j); err != nil {
			return err
		}
		state.Place, state.Objects = last, state.Objects+int64(n)
		progress.Add(n)
		if err := c.Catalog.Checks.Set(ctx, j.Lease(), KindSweep, state); err != nil {
			return err
		}
		if n == compareBatch {
			sleep.For(ctx, sweepPause)
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	return c.Catalog.Checks.Complete(ctx, j.Lease(), KindSweep, state)
}

// deleteUnknown deletes objects that the catalog does not name.
func (c *Checker) deleteUnknown(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	c.Log.Info("delete objects that the catalog does not know", "objects", len(keys), "first", keys[0])
	return c.Publisher.Delete(ctx, keys, func(catalog.Claim) error { return nil })
}

// errMostLost ends a job that would have to make most objects again.
var errMostLost = errors.New("most objects that the catalog names are lost or damaged, so none are made again: " +
	"perhaps it is another hub's bucket, or its file system is not mounted; " +
	"if they are lost, run lighter fsck --repair")

// repairFew is repairAll for a job that has compared n further objects. It returns errMostLost if
// too many are lost of those that the job has compared until now.
func (c *Checker) repairFew(ctx context.Context, seen *guard, n int, found []lost, j *jobs.Running) error {
	if !seen.allows(n, len(found)) {
		c.Log.Error("objects are not repaired", "objects", len(found), "first", found[0].key, "err", errMostLost)
		return errMostLost
	}
	return c.repairAll(ctx, found, j)
}

// repairAll repairs objects and logs what could not be repaired.
func (c *Checker) repairAll(ctx context.Context, all []lost, j *jobs.Running) error {
	if len(all) == 0 {
		return nil
	}
	failed, err := c.repair(ctx, all, &j.Progress)
	if err != nil {
		return err
	}
	for _, l := range all {
		if err := failed[l.key]; err != nil {
			c.Log.Error("an object is lost: run lighter fsck", "object", l.key, "reason", l.why, "err", err)
		} else {
			c.Log.Warn("object repaired", "object", l.key, "reason", l.why)
		}
	}
	return nil
}
