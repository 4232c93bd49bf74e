package figures

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

const (
	// manyNames is the number of images in the directory of images, all with one tree.
	manyNames = 10_000
	// Targets of the figure names, in seconds.
	listTarget, lookTarget = 0.5, 0.3
)

// names measures the directory of images: a first listing of 10,000 names, and a first look into an
// image that is not mounted. Then it measures the image store.
func (r *run) names(ctx context.Context) error {
	if err := r.pushNames(ctx); err != nil {
		return err
	}
	dir := filepath.Join(r.Site.Dir, "images")
	r.Site.SetNodeArgs("--directory", dir)
	defer r.Site.SetNodeArgs()
	var list, look []float64
	for range r.Rounds {
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		took, out, err := r.timeCommand(ctx, "ls", filepath.Join(dir, "many"))
		if err != nil {
			return err
		}
		if n := strings.Count(out, "\n"); n != manyNames {
			return fmt.Errorf("ls printed %d names, want %d", n, manyNames)
		}
		list = append(list, took)
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		image := filepath.Join(dir, fmt.Sprintf("many/base:%d", manyNames/2))
		if took, _, err = r.timeCommand(ctx, "head", "-c1", filepath.Join(image, "etc/debian_version")); err != nil {
			return err
		}
		look = append(look, took)
		bench.Say("ls %s, look %s", bench.Seconds(list[len(list)-1]), bench.Seconds(took))
	}
	for _, f := range []struct {
		what   string
		times  []float64
		target float64
	}{{"ls of 10,000 images", list, listTarget}, {"look into an image that is not mounted", look, lookTarget}} {
		r.rows = append(r.rows, timesRow("base", f.what, site.Lighter, f.times))
		v := verdict{Figure: "names", What: f.what, Unit: "s"}
		v.Value, v.Target, v.Result = atMost(bench.Median(f.times), f.target)
		r.verdicts = append(r.verdicts, v)
	}
	return r.storeList(ctx)
}

// timeCommand runs a command on the machine, and returns its time in seconds and its output.
func (r *run) timeCommand(ctx context.Context, argv ...string) (took float64, out string, err error) {
	began := time.Now()
	out, err = r.Site.Machine.Command(ctx, argv...)
	return time.Since(began).Seconds(), out, err
}

// pushNames gives one image of the hub 10,000 names, many/base:N.
func (r *run) pushNames(ctx context.Context) error {
	dir, err := r.Config.Layout("base")
	if err != nil {
		return err
	}
	if err := r.Site.Hub.AddLayout(ctx, dir, "many/base"); err != nil {
		return err
	}
	return r.pushTags(ctx, "many/base", manyNames-1)
}
