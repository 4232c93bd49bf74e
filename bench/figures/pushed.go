package figures

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
)

// pushedPause is the time between the end of a push and the pull of what was pushed.
const pushedPause = 100 * time.Millisecond

// pushed pushes images to the registry of an empty hub, over the link. It pulls one of them at
// once: the pull has to be lazy. Of the other it measures when the hub has made it ready.
func (r *run) pushed(ctx context.Context) error {
	times := map[string][]float64{}
	for round := range r.Rounds {
		for image, after := range map[string]func(ctx context.Context, h *site.Hub, image string) (float64, error){
			"python": r.pullPushed, "sci": awaitPushed,
		} {
			pushed, took, err := r.pushOnce(ctx, image, after)
			if err != nil {
				return fmt.Errorf("push of %s: %w", image, err)
			}
			bench.Say("%d/%d  %-8s pushed in %s, then %s", round+1, r.Rounds, image, bench.Seconds(pushed),
				bench.Seconds(took))
			times["push of "+image] = append(times["push of "+image], pushed)
			times[image] = append(times[image], took)
		}
	}
	for _, f := range []struct{ image, what, result string }{
		{"python", "pull that begins 0.1 s after the push: lazy", pass}, // pullPushed fails otherwise
		{"sci", "ready after the push's end", noTarget},
	} {
		r.rows = append(r.rows, timesRow(f.image, "push", site.Lighter, times["push of "+f.image]),
			timesRow(f.image, f.what, site.Lighter, times[f.image]))
		r.verdicts = append(r.verdicts, verdict{Figure: "pushed", What: f.image + ", " + f.what, Unit: "s",
			Lighter: bench.Seconds(bench.Median(times[f.image])), Value: bench.Median(times[f.image]), Result: f.result,
			Note: "pushed in " + bench.Seconds(bench.Median(times["push of "+f.image]))})
	}
	return nil
}

// pushOnce pushes an image to an empty hub. It returns how long that took, and the result of after.
func (r *run) pushOnce(
	ctx context.Context, image string, after func(ctx context.Context, h *site.Hub, image string) (float64, error),
) (pushed, took float64, err error) {
	layout, err := r.Config.Layout(image)
	if err != nil {
		return 0, 0, err
	}
	config := fmt.Sprintf("registry_hosts = [%q]\n", site.SpareAddress)
	err = r.withHub(ctx, config, func(h *site.Hub) error {
		r.Site.UseHub(h)
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		pushed, err = timed(func() error {
			_, err := r.Site.Machine.Command(ctx, "skopeo", "copy", "--quiet", "--insecure-policy",
				"--preserve-digests", "--dest-tls-verify=false", "oci:"+layout+":latest",
				"docker://"+pushedReference(h, image))
			return err
		})
		if err == nil {
			took, err = after(ctx, h, image)
		}
		return err
	})
	return pushed, took, err
}

// pullPushed pulls an image that was just pushed, lazily.
func (r *run) pullPushed(ctx context.Context, h *site.Hub, image string) (float64, error) {
	sleep.For(ctx, pushedPause)
	took, err := r.Site.Machine.Pull(ctx, site.Lighter, pushedReference(h, image))
	if err != nil {
		return 0, err
	}
	return took.Seconds(), r.AssertLazy(ctx, image)
}

// awaitPushed waits until an image that was just pushed is ready.
func awaitPushed(ctx context.Context, h *site.Hub, image string) (float64, error) {
	return timed(func() error { return awaitReady(ctx, h, image+":latest", 100*time.Millisecond) })
}

// pushedReference is the reference of an image in a hub's registry.
func pushedReference(h *site.Hub, image string) string {
	return strings.TrimPrefix(h.URL, "http://") + "/" + image + ":latest"
}
