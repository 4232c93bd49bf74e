// Package starts compares snapshotters with HelloBench's method (Harter et al., FAST 2016). It
// starts each workload on a machine without the image. It measures how long the pull takes, how
// long the creation of the container takes, when the container is ready and when it ends, and the
// bytes received over the link. Then it measures a second container.
//
// Rounds alternate between the snapshotters. All of them use the same image and link. If a part
// fails, the other results are kept. summary.go computes the ratios.
package starts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// A way is a snapshotter under one of the conditions in which it is measured. These ways are always
// measured; each peer is one more.
const (
	Overlayfs    = "overlayfs"     // a full pull
	LighterFirst = "lighter-first" // Lighter, and the hub has no recordings of the image
	Lighter      = "lighter"       // Lighter, and the hub has recordings of earlier starts
	LighterLocal = "lighter-local" // Lighter with the whole image on the disk, but not yet pulled
)

// LighterBefore is the way Lighter with the node of another build, Options.Before. It is measured
// if Options.Before is set.
const LighterBefore = "lighter-before"

// Options select what to measure.
type Options struct {
	Lighter      string   // the lighter binary
	Before       string   // lighter binary of another build, whose node is also measured; empty: none
	Config       string   // a configuration file; empty: the default
	Out          string   // the directory of the results
	Rounds       int      // 0: as in the configuration
	Only         []string // IMAGE or IMAGE/WORKLOAD; empty: all
	Links        []string // by name; empty: all
	Snapshotters []string // by name; empty: all
}

// plan combines Options and the configuration.
type plan struct {
	bench.Config
	workloads []bench.Workload
	ways      []string
}

// Check returns an error if the options are invalid.
func (o Options) Check() error {
	_, err := o.plan()
	return err
}

func (o Options) plan() (p plan, err error) {
	if p.Config, err = bench.ReadConfig(o.Config); err != nil {
		return p, err
	}
	if o.Rounds > 0 {
		p.Rounds = o.Rounds
	}
	all := p.Workloads()
	for _, name := range o.Only {
		if !slices.ContainsFunc(all, func(w bench.Workload) bool { return w.Image == name || w.String() == name }) {
			return p, fmt.Errorf("there is no image or workload %q; the workloads are %s", name, joined(all))
		}
	}
	for _, w := range all {
		if len(o.Only) == 0 || slices.Contains(o.Only, w.Image) || slices.Contains(o.Only, w.String()) {
			p.workloads = append(p.workloads, w)
		}
	}
	var links, ways []string
	for _, l := range p.Links {
		links = append(links, l.Name)
	}
	if links, err = chosen("link", links, o.Links); err != nil {
		return p, err
	}
	p.Links = slices.DeleteFunc(p.Links, func(l bench.Link) bool { return !slices.Contains(links, l.Name) })
	ways = []string{Overlayfs, LighterFirst, Lighter, LighterLocal}
	if o.Before != "" {
		if _, err := os.Stat(o.Before); err != nil {
			return p, fmt.Errorf("the other build: %w", err)
		}
		ways = append(ways, LighterBefore)
	}
	for _, peer := range p.Peers {
		ways = append(ways, peer.Name)
	}
	if p.ways, err = chosen("snapshotter", ways, o.Snapshotters); err != nil {
		return p, err
	}
	if len(p.workloads) == 0 || len(p.Links) == 0 {
		return p, errors.New("there is nothing to measure: the configuration has no workload, or no link")
	}
	return p, nil
}

// chosen returns the wanted elements of all, or all if wanted is empty.
func chosen(kind string, all, wanted []string) ([]string, error) {
	if len(wanted) == 0 {
		return all, nil
	}
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no %s %q; there are %s", kind, name, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(wanted, name) }), nil
}

func joined(all []bench.Workload) string {
	var names []string
	for _, w := range all {
		names = append(names, w.String())
	}
	return strings.Join(names, ", ")
}

// over returns the plan's workloads of an image that are measured over a link.
func (p plan) over(l bench.Link, image string) (all []bench.Workload) {
	for _, w := range p.workloads {
		if w.Image == image && (len(l.Workloads) == 0 || slices.Contains(l.Workloads, w.String())) {
			all = append(all, w)
		}
	}
	return all
}

// cells returns the number of cells: combinations of way, link and workload.
func (p plan) cells() (n int) {
	for _, l := range p.Links {
		for _, image := range p.Images {
			n += len(p.over(l, image.Name)) * len(p.ways)
		}
	}
	return n
}

// needs reports whether a way is measured.
func (p plan) needs(way string) bool { return slices.Contains(p.ways, way) }

// run is one run.
type run struct {
	*bench.Bench
	plan
	options  Options
	recorded *site.Hub // the hub with recordings; nil: not needed
	direct   direct
	result   Result
	pulls    map[int]bench.Pulled // overlayfs' pulls of the current image over the current link, by round
	done     int                  // number of measured samples
}

// turnLimit bounds a turn (see visit), so that a hanging peer does not block other measurements.
const turnLimit = 30 * time.Minute

func (r *run) turn(ctx context.Context, v visit) error {
	ctx, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	return r.visit(ctx, v)
}

// Run measures, and writes the results to Options.Out, even if some turns failed.
func Run(ctx context.Context, o Options) error {
	p, err := o.plan()
	if err != nil {
		return err
	}
	return bench.Enclosed(ctx, func(ctx context.Context) (err error) {
		if err := os.MkdirAll(o.Out, 0o755); err != nil {
			return err
		}
		s, err := site.Start(ctx, site.Options{Lighter: o.Lighter, Delayed: true, Isolated: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		r := &run{Bench: bench.New(s, p.Config), plan: p, options: o,
			result: Result{Format: resultFormat, Links: p.Links, Runs: []bench.About{bench.AboutRun()}}}
		if r.direct, err = newDirect(s.Dir); err != nil {
			return err
		}
		if err := r.removeMissing(); err != nil {
			return err
		}
		if p.needsRecordings() {
			if r.recorded, err = s.StartSecondHub(ctx); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.recorded.Close()) }()
		}
		return r.all(ctx)
	})
}

// all measures image by image. It continues after an image that fails.
func (r *run) all(ctx context.Context) error {
	bench.Say("%d workloads, %d links, %d snapshotters: %d cells of %d rounds", len(r.workloads), len(r.Links),
		len(r.ways), r.cells(), r.Rounds)
	failed := 0
	for _, image := range r.Images {
		if !slices.ContainsFunc(r.workloads, func(w bench.Workload) bool { return w.Image == image.Name }) {
			continue
		}
		n, err := r.image(ctx, image.Name)
		if err != nil {
			bench.Say("image %s: %v", image.Name, err)
			n++
		}
		failed += n
		if err := r.result.Write(r.options.Out); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d turns failed (see above); the other results are in %s", failed,
			r.options.Out)
	}
	bench.Say("The results are in %s.", filepath.Join(r.options.Out, "starts.{json,md}"))
	return nil
}

// image measures one image. It prints the failed turns and returns their number.
func (r *run) image(ctx context.Context, image string) (failed int, err error) {
	if err := r.Site.SetLink(ctx, quickRate, 0); err != nil {
		return 0, err
	}
	if err := r.prepare(ctx, image); err != nil {
		return 0, err
	}
	if err := r.record(ctx, image); err != nil {
		return 0, err
	}
	ways, failed := r.convertAll(ctx, image)
	for _, link := range r.Links {
		workloads := r.over(link, image)
		if len(workloads) == 0 {
			continue
		}
		if err := r.Site.SetLink(ctx, link.Rate, time.Duration(link.RTT)); err != nil {
			return failed, err
		}
		for round := range r.Rounds {
			for n := range ways {
				// Each round begins with another way, because a way may affect the next one.
				v := visit{link: link, way: ways[(n+round)%len(ways)], image: image, workloads: workloads, round: round}
				if err := r.turn(ctx, v); err != nil && ctx.Err() == nil {
					bench.Say("%s of %s over %s: %v", v.way, image, link.Name, err)
					failed++
				}
				if ctx.Err() != nil {
					return failed, ctx.Err()
				}
			}
		}
	}
	return failed, nil
}
