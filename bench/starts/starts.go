// Package starts compares snapshotters by HelloBench's method (Harter et al., FAST
// 2016): of each workload it measures the pull, the creation of the container, the
// moment when it is ready and its end, and the bytes that came over the link by
// then, on a machine that has nothing of the image; and a second container.
//
// It promises that rounds alternate between the snapshotters, that every one gets
// the same image and the same link, and that whatever was measured is kept when
// something else fails. It does not judge: summary.go has the ratios.
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
	"lighter/node/report"
	"lighter/test/testkit/site"
)

// The ways to start that are always there. Lighter starts as on the very first
// start of an image that anybody had; with the traces of some starts before; and
// with all that it needs on its disk, containerd being empty.
const (
	Overlayfs    = "overlayfs"
	LighterFirst = "lighter-first"
	Lighter      = "lighter"
	LighterLocal = "lighter-local"

	// LighterBefore is Lighter with another build's node. It is measured if Options.Before names
	// one.
	LighterBefore = "lighter-before"
)

// Options say what to measure.
type Options struct {
	Lighter      string   // the lighter binary
	Before       string   // another build's lighter binary, whose node is measured too; empty: none
	Config       string   // a configuration file; empty: the default
	Out          string   // the directory of the results
	Rounds       int      // instead of the configuration's; 0: those
	Only         []string // IMAGE or IMAGE/WORKLOAD; empty: all
	Links        []string // by name; empty: all
	Snapshotters []string // by name; empty: all
}

// plan is what Options and the configuration make together.
type plan struct {
	bench.Config
	workloads []bench.Workload
	ways      []string
}

// Check says what is wrong with the options.
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
			return p, fmt.Errorf("there is no image or workload %q: there are %s", name, joined(all))
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

// chosen returns those of all that are wanted; nobody wanted: all.
func chosen(kind string, all, wanted []string) ([]string, error) {
	if len(wanted) == 0 {
		return all, nil
	}
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no %s %q: there are %s", kind, name, strings.Join(all, ", "))
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

// over are the plan's workloads of an image that are measured over a link.
func (p plan) over(l bench.Link, image string) (all []bench.Workload) {
	for _, w := range p.workloads {
		if w.Image == image && (len(l.Workloads) == 0 || slices.Contains(l.Workloads, w.String())) {
			all = append(all, w)
		}
	}
	return all
}

// cells counts what is to be measured, each way once a link and workload.
func (p plan) cells() (n int) {
	for _, l := range p.Links {
		for _, image := range p.Images {
			n += len(p.over(l, image.Name)) * len(p.ways)
		}
	}
	return n
}

// needs tells whether a way is to be measured.
func (p plan) needs(way string) bool { return slices.Contains(p.ways, way) }

// run is one run.
type run struct {
	*bench.Bench
	plan
	options Options
	traced  *site.Hub // the hub that has traces; nil: nobody needs it
	result  Result
	pulls   map[int]bench.Pulled // by overlayfs, of the image and over the link that are being measured, by round
	done    int                  // samples
}

// turnLimit is how long a turn may take: a peer that hangs must not keep the others
// from being measured.
const turnLimit = 30 * time.Minute

func (r *run) turn(ctx context.Context, v visit) error {
	ctx, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	return r.visit(ctx, v)
}

// Run measures, and writes the results into Options.Out, also when something
// failed half-way.
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
			result: Result{Format: resultFormat, Links: p.Links, Runs: []About{about()}}}
		if err := r.present(); err != nil {
			return err
		}
		if p.needsTraces() {
			if r.traced, err = s.StartSecondHub(ctx); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.traced.Close()) }()
		}
		return r.all(ctx)
	})
}

// about says of this run where and when it is.
func about() About {
	return About{Started: time.Now().UTC().Truncate(time.Second), Version: report.Version(), Kernel: kernel(),
		Processors: processors(), Memory: memory()}
}

// all measures image by image. One that fails does not keep the others from being
// measured.
func (r *run) all(ctx context.Context) error {
	bench.Say("%d workloads, %d links, %d ways: %d cells of %d rounds", len(r.workloads), len(r.Links), len(r.ways),
		r.cells(), r.Rounds)
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
		return fmt.Errorf("not everything was measured: %d turns failed, as was said above; the rest is in %s", failed,
			r.options.Out)
	}
	bench.Say("The results are in %s.", filepath.Join(r.options.Out, "starts.{json,md}"))
	return nil
}

// image measures all of one image. It says which turns failed, and returns how many.
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
				// Each round begins with another one: what one leaves behind must not always meet
				// the same other.
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
