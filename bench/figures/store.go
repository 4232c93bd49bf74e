package figures

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/site"
)

const (
	// storeImages is the number of images in the image store, each with a layer of its own.
	storeImages = 1000
	// The list of the images passes if it meets one of these: its time relative to the list of
	// nothing, or the difference to it in seconds.
	storeRatio  = 2
	storeBehind = 0.3
)

// storeList measures `podman images` with 1,000 images in the node's image store, and without the
// store.
func (r *run) storeList(ctx context.Context) (err error) {
	if _, err := r.derived(ctx, "base", storeImages); err != nil {
		return err
	}
	p := podman{r}
	r.Site.SetNodeArgs("--image-store", p.store(), "--image-store-names", "base-*")
	defer func() { err = errors.Join(err, p.end(ctx, true)); r.Site.SetNodeArgs() }()
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	if err := p.awaitImages(ctx, "localhost/base-", storeImages); err != nil {
		return err
	}
	times := map[string][]float64{}
	err = r.bothModes(func(round int, mode string) error {
		took, out, err := r.timeCommand(ctx, p.argv(mode, "images", "--noheading")...)
		// An image has a line for each of its names.
		if n := strings.Count(out, "\n"); err == nil && (n >= storeImages) != (mode == site.Lighter) {
			err = fmt.Errorf("podman images printed %d lines in the mode %s", n, mode)
		}
		bench.Say("%d/%d  podman images, %-10s %s", round+1, r.Rounds, mode, bench.Seconds(took))
		times[mode] = append(times[mode], took)
		return err
	})
	if err != nil {
		return err
	}
	none, all := bench.Median(times[site.Overlayfs]), bench.Median(times[site.Lighter])
	r.rows = append(r.rows, timesRow("base", "podman images of 1,000", site.Lighter, times[site.Lighter]))
	r.judgeEither("names", "podman images, 1,000 in the store : none", none, all, storeRatio, storeBehind, "")
	return nil
}
