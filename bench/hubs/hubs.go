// Package hubs measures what a hub costs: to ingest images, with each kind of catalog and bucket
// and with several processes, to ingest one more layer, to store images and to free them again, to
// answer requests when it has many images and jobs, and to do nothing, with many domains too.
//
// It starts hubs, PostgreSQL and an S3 server, on loopback and in temporary directories, and ends
// all of them. docs/benchmarks-hub.md says how to read the figures.
package hubs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lighter/bench"
)

// figure is a measurement. The printed table has one line for it, or a few.
type figure struct {
	name    string
	measure func(*run, context.Context) error
}

func allFigures() []figure {
	return []figure{
		{"ingest", (*run).ingest},
		{"stores", (*run).stores},
		{"processes", (*run).processes},
		{"layer", (*run).layer},
		{"disk", (*run).disk},
		{"api", (*run).api},
		{"idle", (*run).idle},
		{"domains", (*run).domains},
		{"dead", (*run).dead},
		{"during", (*run).during},
		{"faults", (*run).faults},
	}
}

// Names returns the names of all figures.
func Names() (names []string) {
	for _, f := range allFigures() {
		names = append(names, f.name)
	}
	return names
}

// Results is the content of hubs.json.
type Results struct {
	Run    bench.About `json:"run"`
	Rounds int         `json:"rounds"`
	Lines  []Result    `json:"results"`
}

// Result is one line of the results.
type Result struct {
	Figure string    `json:"figure"`
	What   string    `json:"what"`
	Value  float64   `json:"value"` // a ratio of medians, or a median
	Unit   string    `json:"unit"`
	Target float64   `json:"target,omitempty"` // 0: none
	Least  bool      `json:"at_least,omitempty"`
	Result string    `json:"result"`         // PASS, MISS, or report (without a target)
	All    []float64 `json:"all,omitempty"`  // the measured values, in Unit; of a ratio, in seconds or bytes
	Base   []float64 `json:"base,omitempty"` // of a ratio: the values that All is compared with
}

// run is a run of the benchmark.
type run struct {
	bench.Options
	config  bench.Config
	dir     string
	results Results
	roots   int // number of directories for hubs that nextRoot has named

	hasLayouts, hasBackup bool // whether dir has the layouts and the backup of the versions of the image
}

// Run measures the figures, and writes the results, even if some figures failed.
func Run(ctx context.Context, o bench.Options) error {
	config, err := bench.ReadConfig("")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lighter-hubs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &run{Options: o, config: config, dir: dir, results: Results{Run: bench.AboutRun(), Rounds: o.Rounds}}
	var errs []error
	for _, f := range allFigures() {
		if !o.Selects(f.name) {
			continue
		}
		if err := f.measure(r, ctx); err != nil {
			errs = append(errs, fmt.Errorf("figure %s: %w", f.name, err))
			bench.Say("%v", errs[len(errs)-1])
		}
		if err := r.results.write(o.Out); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(errs, r.print())...)
}

// add adds a result. A positive target is the maximum. A negative one means that -target is the
// minimum. With 0 there is no target.
func (r *run) add(v Result, target float64) {
	v.Target, v.Least, v.Result = target, target < 0, "report"
	if v.Least {
		v.Target = -target
	}
	if target != 0 {
		v.Result = "MISS"
		if v.Least == (v.Value >= v.Target) || v.Value == v.Target {
			v.Result = "PASS"
		}
	}
	r.results.Lines = append(r.results.Lines, v)
	bench.Say("%-10s %-44s %.3f %s  %s", v.Figure, v.What, v.Value, v.Unit, v.Result)
}

// ratio adds the ratio of the medians of all and base, which are times in seconds.
func (r *run) ratio(figure, what string, all, base []float64, target float64) {
	r.add(Result{Figure: figure, What: what, Value: bench.Median(all) / bench.Median(base), Unit: "ratio",
		All: all, Base: base}, target)
}
