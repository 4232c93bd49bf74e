// Package figures measures the figures for which Lighter has targets, except those of package
// starts. It compares them with a full pull into overlayfs, and reports which targets are reached.
// It also runs the demo.
package figures

import (
	"context"
	"errors"
	"os"
	"slices"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// run is a run of the benchmark, with its rows and verdicts.
type run struct {
	*bench.Bench
	bench.Options
	workloads []bench.Workload
	rows      []benchRow
	verdicts  []verdict
}

// The link's speed, in bytes a second.
const linkSpeed = 1e9 / 8

// modes are the two compared snapshotters.
var modes = []string{site.Overlayfs, site.Lighter}

// Run measures the figures, and writes the results, even if some figures failed.
func Run(ctx context.Context, o bench.Options) error { return measure(ctx, o, (*run).figures) }

// Demo runs three commands in both modes and prints a table.
func Demo(ctx context.Context, o bench.Options) error { return measure(ctx, o, (*run).demo) }

// measure calls fn with a site, in an enclosure.
func measure(ctx context.Context, o bench.Options, fn func(*run, context.Context) error) error {
	return bench.Enclosed(ctx, func(ctx context.Context) (err error) {
		config, err := bench.ReadConfig("")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(o.Out, 0o755); err != nil {
			return err
		}
		s, err := site.Start(ctx, site.Options{Lighter: o.Lighter, Differ: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		return fn(&run{Bench: bench.New(s, config), Options: o, workloads: judged(config)}, ctx)
	})
}

// judged returns the workloads that have a target.
func judged(config bench.Config) (all []bench.Workload) {
	for _, w := range config.Workloads() {
		if _, ok := targets[w.String()]; ok {
			all = append(all, w)
		}
	}
	return all
}

// images returns the images of the workloads, in their order.
func (r *run) images() []string {
	var names []string
	for _, w := range r.workloads {
		if !slices.Contains(names, w.Image) {
			names = append(names, w.Image)
		}
	}
	return names
}
