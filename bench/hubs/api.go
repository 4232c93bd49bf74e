package hubs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/catalogtest"
)

const (
	apiImages   = 1000    // images that are added to a hub
	apiJobs     = 100_000 // ended jobs that are added to a hub
	apiAtMost   = 0.05    // target for one request, in seconds
	apiRequests = 20      // requests to each path
)

// api measures requests to hubs with many images and ended jobs.
func (r *run) api(ctx context.Context) error {
	shared, end, err := startShared()
	if err != nil {
		return err
	}
	defer end()
	other, err := shared()
	if err != nil {
		return err
	}
	if err := r.apiOf(ctx, "SQLite", store{}); err != nil {
		return err
	}
	return r.apiOf(ctx, "PostgreSQL", other)
}

// apiOf measures requests to a hub that keeps its state in s. name is that of the database.
func (r *run) apiOf(ctx context.Context, name string, s store) (err error) {
	layout, err := r.config.Layout("base")
	if err != nil {
		return err
	}
	p, err := r.start(ctx, r.Lighter, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.push(ctx, layout, "base:1"); err != nil {
		return err
	}
	if err := p.ready(ctx, "base:1"); err != nil {
		return err
	}
	if err := p.settled(ctx); err != nil {
		return err
	}
	images, err := p.Images(ctx, "base:1")
	if err != nil {
		return err
	}
	large, err := catalogtest.OpenLarge(cmp.Or(s.catalog, filepath.Join(p.root, "catalog.db")))
	if err != nil {
		return err
	}
	if err := errors.Join(large.Fill(ctx, apiImages, apiJobs), large.Close()); err != nil {
		return err
	}
	chain := catalogtest.CopyOf(images[0].Chain, 7)
	digests := strings.NewReplacer(chain, "CHAIN", images[0].Digest, "DIGEST") // for the results
	for _, path := range []string{"/images", "/images?name=fill/7:1", "/images/inspect?name=fill/7:1", "/jobs",
		"/jobs?ended=1", "/chains/" + chain, "/trees/" + chain, "/manifests/" + images[0].Digest,
		"/traces?name=base:1", "/holders", "/retention"} {
		var all []float64
		for range apiRequests {
			took, err := seconds(func() error {
				_, err := p.send(ctx, http.MethodGet, "http://"+p.address+"/lighter/1/default"+path, "", nil)
				return err
			})
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		r.add(Result{Figure: "api", What: fmt.Sprintf("%s, GET %s", name, digests.Replace(path)),
			Value: bench.Median(all), Unit: "s", All: all}, apiAtMost)
	}
	return nil
}
