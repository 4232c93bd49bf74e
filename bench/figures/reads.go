package figures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Targets of the figures reads, walk and first.
const (
	readRatio = 1.15 // reads, relative to overlayfs
	coldWalk  = 0.8  // a walk without page cache, relative to overlayfs
	hotWalk   = 1.1  // a walk right afterwards, relative to overlayfs

	// A first read passes if it meets one of these targets, which are minimums.
	linkShare  = 0.7 // rate of the read : rate of the link
	busyEnough = 0.9 // share of the site's processes in the processor time that others leave
)

const largestImage = "ml"

// both runs a container of ml in each mode on one machine, and calls fn with the paths of the
// containers' root directories on the host.
func (r *run) both(ctx context.Context, fn func(roots map[string]string) error) (err error) {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	roots := map[string]string{}
	for _, mode := range modes {
		if _, err := r.Site.Machine.Pull(ctx, mode, site.Reference(largestImage)); err != nil {
			return err
		}
		c, err := r.Site.Machine.StartContainer(ctx, mode, site.Reference(largestImage), "sleep", "infinity")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Remove(ctx)) }()
		roots[mode] = c.Root
	}
	if err := r.AssertLazy(ctx, largestImage); err != nil {
		return err
	}
	return fn(roots)
}

// timed returns the duration of fn, in seconds.
func timed(fn func() error) (float64, error) {
	start := time.Now()
	err := fn()
	return time.Since(start).Seconds(), err
}

// reads measures reads with all data on the node's disk and an empty page cache.
func (r *run) reads(ctx context.Context) error {
	return r.both(ctx, func(roots map[string]string) error {
		c, err := choose(roots[site.Overlayfs])
		if err != nil {
			return err
		}
		var content reader
		for _, mode := range modes {
			if _, err := content.read(roots[mode], append(c.small, c.largest)...); err != nil {
				return err
			}
		}
		large, small := map[string][]float64{}, map[string][]float64{}
		if err := r.bothModes(func(round int, mode string) error {
			if err := droppedRead(&content, roots[mode], large, mode, c.largest); err != nil {
				return err
			}
			return droppedRead(&content, roots[mode], small, mode, c.small...)
		}); err != nil {
			return err
		}
		r.judgeTimes("reads", fmt.Sprintf("largest file (%s)", bench.Size(c.largestSize)), large, readRatio)
		r.judgeTimes("reads", fmt.Sprintf("%d small files", len(c.small)), small, readRatio)
		return nil
	})
}

// droppedRead drops the page cache, reads paths, and adds the duration to times.
func droppedRead(r *reader, root string, times map[string][]float64, mode string, paths ...string) error {
	if err := site.DropCaches(); err != nil {
		return err
	}
	took, err := timed(func() error { _, err := r.read(root, paths...); return err })
	times[mode] = append(times[mode], took)
	bench.Say("%-10s %d files in %s", mode, len(paths), bench.Seconds(took))
	return err
}

// judgeTimes adds the rows and the verdict for the times of both modes.
func (r *run) judgeTimes(figure, what string, times map[string][]float64, target float64) {
	for _, mode := range modes {
		r.rows = append(r.rows, timesRow(largestImage, figure+": "+what, mode, times[mode]))
	}
	r.judge(figure, what, bench.Median(times[site.Overlayfs]), bench.Median(times[site.Lighter]), target)
}

// walks measures stat calls on every name.
func (r *run) walks(ctx context.Context) error {
	return r.both(ctx, func(roots map[string]string) error {
		cold, hot := map[string][]float64{}, map[string][]float64{}
		names := map[string]int{}
		err := r.bothModes(func(round int, mode string) error {
			if err := site.DropCaches(); err != nil {
				return err
			}
			for _, times := range []map[string][]float64{cold, hot} {
				took, err := timed(func() (err error) { names[mode], err = walk(roots[mode], nil); return err })
				if err != nil {
					return err
				}
				times[mode] = append(times[mode], took)
				bench.Say("%-10s %d names in %s", mode, names[mode], bench.Seconds(took))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if names[site.Overlayfs] != names[site.Lighter] {
			return fmt.Errorf("overlayfs has %d names, Lighter %d", names[site.Overlayfs], names[site.Lighter])
		}
		r.judgeTimes("walk", fmt.Sprintf("%d names, cold", names[site.Lighter]), cold, coldWalk)
		r.judgeTimes("walk", "the same, hot", hot, hotWalk)
		return nil
	})
}
