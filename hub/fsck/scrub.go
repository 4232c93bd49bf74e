package fsck

import (
	"context"
	"strings"
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

// scrub is a job that reads the next share of the objects, and repairs damaged ones. After the
// objects it reads the registry's blobs, and reports damaged ones.
func (c *Checker) scrub(ctx context.Context, j *jobs.Running) error {
	state, err := c.Catalog.Checks.Get(ctx, KindScrub)
	if err != nil {
		return err
	}
	n, bytes, err := c.Catalog.Checks.ObjectBytes(ctx)
	if err != nil {
		return err
	}
	blobs, blobBytes, err := c.Catalog.Repairs.BlobBytes(ctx)
	if err != nil {
		return err
	}
	n, bytes = n+blobs, bytes+blobBytes
	share := (bytes+n*smallObject)/(max(c.ScrubDays, 1)*int64(24*time.Hour/scrubEvery)) + 1
	rate := max(share/int64(scrubTime/time.Second), minScrubRate)
	progress := j.Step("scrub", "objects", share)
	read, saved := int64(0), int64(0)
	// next notes that all before a place was read, and pauses. It reports whether the job has read
	// its share.
	next := func(place string, n int64) (enough bool, err error) {
		state.Place, state.Objects, state.Bytes = place, state.Objects+1, state.Bytes+n
		cost := max(n, smallObject)
		progress.Add(int(cost))
		if read += cost; read >= share {
			return true, c.Catalog.Checks.Set(ctx, j.Lease(), KindScrub, state)
		}
		if read-saved >= scrubSave {
			saved = read
			if err := c.Catalog.Checks.Set(ctx, j.Lease(), KindScrub, state); err != nil {
				return false, err
			}
		}
		if !sleep.For(ctx, time.Duration(cost)*time.Second/time.Duration(rate)) {
			return false, context.Cause(ctx)
		}
		return false, nil
	}
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
		if enough, err := next(p.key, n); enough || err != nil {
			return err
		}
	}
	after, _ := strings.CutPrefix(state.Place, blobPlace)
	if after == state.Place { // the objects have just ended
		after = ""
	}
	for digest, err := range c.blobs(ctx, after) {
		if err != nil {
			return err
		}
		why, n, err := c.readBlob(ctx, digest)
		if err != nil {
			return err
		}
		if why != "" {
			state.Errors++
			c.Log.Error("a blob of the registry is damaged: run lighter fsck --deep --repair", "blob", digest,
				"reason", why)
		}
		if enough, err := next(blobPlace+digest, n); enough || err != nil {
			return err
		}
	}
	return c.Catalog.Checks.Complete(ctx, j.Lease(), KindScrub, state)
}
