package fsck

import (
	"context"
	"time"

	"lighter/hub/jobs"
	"lighter/sleep"
)

const (
	// A scrub job reads a share of all objects, and spreads that over scrubTime.
	scrubEvery = 6 * time.Hour
	scrubTime  = time.Hour
	// minScrubRate is the least rate of a job, in bytes a second.
	minScrubRate = 4 << 20
	// smallObject is the number of bytes that an object counts at least: small ones take a request,
	// too.
	smallObject = 64 << 10
	scrubSave   = 64 << 20 // bytes after which a job stores how far it is
)

// scrub is a job that reads the next share of the objects, and repairs damaged ones.
func (c *Checker) scrub(ctx context.Context, j *jobs.Running) error {
	state, err := c.Catalog.Checks.Get(ctx, KindScrub)
	if err != nil {
		return err
	}
	n, bytes, err := c.Catalog.Checks.ObjectBytes(ctx)
	if err != nil {
		return err
	}
	share := (bytes+n*smallObject)/(max(c.ScrubDays, 1)*int64(24*time.Hour/scrubEvery)) + 1
	rate := max(share/int64(scrubTime/time.Second), minScrubRate)
	progress := j.Step("scrub", "objects", share)
	read, saved := int64(0), int64(0)
	var lacks guard
	for p, err := range c.known(ctx, state.Place) {
		if err != nil {
			return err
		}
		o, _ := parse(p.key)
		why, n, err := c.damage(ctx, o)
		if err != nil {
			return err
		}
		var found []lost
		if why != "" {
			state.Errors++
			found = []lost{{o, why}}
		}
		if err := c.repairFew(ctx, &lacks, 1, found, j); err != nil {
			return err
		}
		state.Place, state.Objects, state.Bytes = p.key, state.Objects+1, state.Bytes+n
		cost := max(n, smallObject)
		progress.Add(int(cost))
		if read += cost; read >= share {
			return c.Catalog.Checks.Set(ctx, j.Lease(), KindScrub, state)
		}
		if read-saved >= scrubSave {
			saved = read
			if err := c.Catalog.Checks.Set(ctx, j.Lease(), KindScrub, state); err != nil {
				return err
			}
		}
		if !sleep.For(ctx, time.Duration(cost)*time.Second/time.Duration(rate)) {
			return context.Cause(ctx)
		}
	}
	return c.Catalog.Checks.Complete(ctx, j.Lease(), KindScrub, state)
}
