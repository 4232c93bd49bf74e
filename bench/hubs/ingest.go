package hubs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
)

// Targets: ratios of the times of an ingestion.
const (
	beforeRatio = 1.05 // by this build : by the other build
	storesRatio = 1.3  // with PostgreSQL and S3 : with SQLite and a directory
)

var ingested = []string{"python", "sci", "ml"}

// cost is what the ingestion of an image takes, in seconds.
type cost struct {
	time      float64 // from the start of a push until the image is ready
	processor float64 // processor time of the hub's process; from ingestOnce it includes the process's start
}

func (r *run) ingestOnce(ctx context.Context, lighter string, s store, image string) (c cost, err error) {
	layout, err := r.config.Layout(image)
	if err != nil {
		return c, err
	}
	p, err := r.start(ctx, lighter, s)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	c.time, err = seconds(func() error {
		if err := p.push(ctx, layout, image+":1"); err != nil {
			return err
		}
		return p.ready(ctx, image+":1")
	})
	if err == nil {
		c.processor, err = p.processor()
	}
	return c, err
}

func times(all []cost) (list []float64) {
	for _, c := range all {
		list = append(list, c.time)
	}
	return list
}

func processors(all []cost) (list []float64) {
	for _, c := range all {
		list = append(list, c.processor)
	}
	return list
}

// compare calls the functions one and other in turn; both ingest an image. It adds two results, for
// time and for processor time: the median of one divided by the median of other. sides names both
// functions: "one : other".
func (r *run) compare(ctx context.Context, figure, sides, image string, target float64,
	one, other func(image string) (cost, error),
) error {
	var all, base []cost
	for round := range r.Rounds {
		steps := []func() error{
			func() error { took, err := one(image); all = append(all, took); return err },
			func() error { took, err := other(image); base = append(base, took); return err },
		}
		if round%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return fmt.Errorf("image %s: %w", image, err)
			}
		}
	}
	r.ratio(figure, image+", "+sides, times(all), times(base), target)
	r.ratio(figure, "hub's processor time, "+image+", "+sides, processors(all), processors(base), 0)
	return nil
}

// ingest compares ingestion by this build with ingestion by another build (Options.Before). Without
// another build, it measures only if the figure was selected: the figure "stores" measures these
// times, too.
func (r *run) ingest(ctx context.Context) error {
	if r.Before == "" && len(r.Only) == 0 {
		return nil
	}
	for _, image := range ingested {
		now := func(image string) (cost, error) { return r.ingestOnce(ctx, r.Lighter, store{}, image) }
		if r.Before != "" {
			err := r.compare(ctx, "ingest", "this build : the build before", image, beforeRatio, now,
				func(image string) (cost, error) { return r.ingestOnce(ctx, r.Before, store{}, image) })
			if err != nil {
				return err
			}
			continue
		}
		var all []cost
		for range r.Rounds {
			took, err := now(image)
			if err != nil {
				return fmt.Errorf("image %s: %w", image, err)
			}
			all = append(all, took)
		}
		r.median("ingest", image, times(all), 0)
		r.median("ingest", "hub's processor time, "+image, processors(all), 0)
	}
	return nil
}

// stores compares PostgreSQL and S3 with SQLite and a directory.
func (r *run) stores(ctx context.Context) error {
	shared, end, err := startShared()
	if err != nil {
		return err
	}
	defer end()
	for _, image := range ingested {
		err := r.compare(ctx, "stores", "PostgreSQL and S3 : SQLite and a directory", image, storesRatio,
			func(image string) (cost, error) {
				s, err := shared()
				if err != nil {
					return cost{}, err
				}
				return r.ingestOnce(ctx, r.Lighter, s, image)
			},
			func(image string) (cost, error) { return r.ingestOnce(ctx, r.Lighter, store{}, image) })
		if err != nil {
			return err
		}
	}
	return nil
}

// startShared starts PostgreSQL and an S3 server. next returns an empty database and bucket.
func startShared() (next func() (store, error), end func(), err error) {
	database, err := postgres.New()
	if err != nil {
		return nil, nil, err
	}
	storage, err := s3.New()
	if err != nil {
		database.Close()
		return nil, nil, err
	}
	n := 0
	next = func() (s store, err error) {
		n++
		if s.catalog, err = database.NewDatabase(); err != nil {
			return s, err
		}
		s.bucket, err = storage.Bucket(n)
		return s, err
	}
	return next, func() { storage.Close(); database.Close() }, nil
}
