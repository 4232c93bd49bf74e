package figures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
	"lighter/wire"
)

const (
	pushThroughImage = "sci"
	// Targets at the first rate: the push through the hub : straight, and the seconds from the
	// push's end until the image is ready.
	pushThroughRatio = 1.2
	pushThroughReady = 2.0
	// pushThroughLook is the time between two looks whether the image is ready.
	pushThroughLook = 50 * time.Millisecond
)

// pushThroughRates are the rates of the link, the last of which is that of the other figures.
var pushThroughRates = []string{"200mbit", "1gbit"}

// pushThrough pushes an image to the registry, straight and through an empty hub.
func (r *run) pushThrough(ctx context.Context) (err error) {
	stop, err := site.StartPushName()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, rate := range pushThroughRates {
		if err := r.Site.SetRate(ctx, rate); err != nil {
			return err
		}
		var straight, through, ready []float64
		for round := range r.Rounds {
			one, err := r.pushThroughRound(ctx, fmt.Sprintf("%s-%d", rate, round))
			if err != nil {
				return fmt.Errorf("round %d at %s: %w", round, rate, err)
			}
			bench.Say("%d/%d  %s at %s: %s straight, %s through the hub, then ready in %s", round+1, r.Rounds,
				pushThroughImage, rate, bench.Seconds(one.straight), bench.Seconds(one.through),
				bench.Seconds(one.ready))
			straight, through = append(straight, one.straight), append(through, one.through)
			ready = append(ready, one.ready)
		}
		r.rows = append(r.rows, timesRow(pushThroughImage, "push straight to the registry, at "+rate, site.Overlayfs,
			straight), timesRow(pushThroughImage, "push through the hub, at "+rate, site.Lighter, through),
			timesRow(pushThroughImage, "ready after the push's end, at "+rate, site.Lighter, ready))
		took := verdict{Figure: "pushthrough",
			What:      "push of " + pushThroughImage + " through the hub : straight, at " + rate,
			Overlayfs: bench.Seconds(bench.Median(straight)), Lighter: bench.Seconds(bench.Median(through)),
			Value: bench.Median(through) / bench.Median(straight), Unit: "ratio", Result: noTarget}
		after := verdict{Figure: "pushthrough", What: pushThroughImage + ", ready after the push's end, at " + rate,
			Lighter: bench.Seconds(bench.Median(ready)), Value: bench.Median(ready), Unit: "s", Result: noTarget}
		if rate == pushThroughRates[0] {
			took.Value, took.Target, took.Result = atMost(took.Value, pushThroughRatio)
			after.Value, after.Target, after.Result = atMost(after.Value, pushThroughReady)
		}
		r.verdicts = append(r.verdicts, took, after)
	}
	return nil
}

// pushThroughTimes are the times of a round, in seconds.
type pushThroughTimes struct{ straight, through, ready float64 }

// pushThroughRound pushes to two repositories that the registry does not have yet.
func (r *run) pushThroughRound(ctx context.Context, name string) (one pushThroughTimes, err error) {
	one.straight, err = timed(func() error { return r.copyImage(ctx, site.Reference("straight-"+name)) })
	if err != nil {
		return one, err
	}
	pushed := "through-" + name
	err = r.withHub(ctx, site.PushTable, func(h *site.Hub) error {
		one.through, err = timed(func() error { return r.copyImage(ctx, h.PushReference(pushed)) })
		if err != nil {
			return err
		}
		one.ready, err = timed(func() error {
			return awaitReady(ctx, h, site.Reference(pushed), pushThroughLook)
		})
		return err
	})
	return one, err
}

// copyImage pushes the image. Skopeo does not remember which repositories have its blobs, so it
// mounts none.
func (r *run) copyImage(ctx context.Context, ref string) error {
	layout, err := r.Config.Layout(pushThroughImage)
	if err != nil {
		return err
	}
	const forgetful = "mkdir -p /var/lib/containers && mount -t tmpfs tmpfs /var/lib/containers && exec skopeo \"$@\""
	_, err = r.Site.Machine.Command(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", forgetful,
		"skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests", "--dest-tls-verify=false",
		"oci:"+layout+":latest", "docker://"+ref)
	return err
}

// awaitReady waits until a hub has made an image ready that has passed through it.
func awaitReady(ctx context.Context, h *site.Hub, name string, look time.Duration) error {
	for began := time.Now(); time.Since(began) < readyLimit; {
		if state, err := h.State(ctx, name); err != nil || state == wire.StateReady {
			return err
		}
		if !sleep.For(ctx, look) {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the hub has not made %s ready within %s", name, readyLimit)
}
