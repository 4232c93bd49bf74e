package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/site"
	"lighter/wire"
)

const (
	// manyNames is the number of images in the directory of images, all with one tree.
	manyNames = 10_000
	// namesLimit bounds the time until the hub has ingested them.
	namesLimit = 30 * time.Minute
	// namesPause is the time between two looks whether it has.
	namesPause = 5 * time.Second
	// pushesTogether is how many names are pushed at a time.
	pushesTogether = 8
	// Targets of the figure names, in seconds.
	listTarget, lookTarget = 0.5, 0.3
)

// names measures the directory of images: a first listing of 10,000 names, and a first look into an
// image that is not mounted.
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
		image := filepath.Join(dir, "many/base:5000")
		if took, _, err = r.timeCommand(ctx, "head", "-c1", filepath.Join(image, "etc/debian_version")); err != nil {
			return err
		}
		look = append(look, took)
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
	return nil
}

// timeCommand runs a command on the machine, and returns its time in seconds and its output.
func (r *run) timeCommand(ctx context.Context, argv ...string) (took float64, out string, err error) {
	began := time.Now()
	out, err = r.Site.Machine.Command(ctx, argv...)
	return time.Since(began).Seconds(), out, err
}

// pushNames gives one image of the hub 10,000 names, many/base:N, and waits until all are ready.
func (r *run) pushNames(ctx context.Context) error {
	dir, err := r.Config.Layout("base")
	if err != nil {
		return err
	}
	if err := r.Site.Hub.AddLayout(ctx, dir, "many/base"); err != nil {
		return err
	}
	manifests := r.Site.Hub.URL + "/v2/many/base/manifests/"
	manifest, kind, err := request(ctx, http.MethodGet, manifests+"latest", nil, ocispec.MediaTypeImageManifest)
	if err != nil {
		return err
	}
	began := time.Now()
	pushes, pushing := errgroup.WithContext(ctx)
	pushes.SetLimit(pushesTogether)
	for n := range manyNames - 1 { // with latest
		pushes.Go(func() error {
			_, _, err := request(pushing, http.MethodPut, manifests+strconv.Itoa(n), manifest, kind)
			return err
		})
	}
	if err := pushes.Wait(); err != nil {
		return err
	}
	for time.Since(began) < namesLimit {
		out, err := r.Site.Hub.Lighter(ctx, "images", "--json")
		if err != nil {
			return err
		}
		var images []wire.Image
		if err := json.Unmarshal([]byte(out), &images); err != nil {
			return err
		}
		ready := 0
		for _, i := range images {
			if i.State == wire.StateReady && strings.HasPrefix(i.Name, "many/base:") {
				ready++
			}
		}
		if ready == manyNames {
			bench.Say("the hub has %d names after %s", ready, bench.Seconds(time.Since(began).Seconds()))
			return nil
		}
		if !sleep.For(ctx, namesPause) {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the hub has not made %d names ready within %s", manyNames, namesLimit)
}

// request sends a request to the hub's registry, and returns the answer's body and media type. kind
// is the media type that is sent, or accepted.
func request(ctx context.Context, method, url string, body []byte, kind string) (answer []byte, got string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", kind)
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, answer)
	}
	return answer, resp.Header.Get("Content-Type"), err
}
