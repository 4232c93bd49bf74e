package figures

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"lighter/bench"
)

// figure is one line of the table of targets, or a few lines that are measured together.
type figure struct {
	name    string
	title   string
	measure func(*run, context.Context) error
}

// allFigures returns the figures in the order of measurement. million is the last one, because its
// files would change the hub for the others.
func allFigures() []figure {
	return []figure{
		{"ratios", "cold start by full pull and through Lighter: time, bytes, pull alone, second run", (*run).ratios},
		{"reads", "data cached, page cache dropped: the largest file and 5,000 small ones", (*run).reads},
		{"walk", "every name with stat, cold and hot", (*run).walks},
		{"first", "first read of a large file that is nowhere cached", (*run).firstRead},
		{"memory", "the node's memory, everything of ml read once", (*run).memory},
		{"pagecache", "page cache of ten images on one base", (*run).pageCache},
		{"restart", "a node's start, with mounts to take over and after a reboot", (*run).restarts},
		{"faults", "single faults, alone and beside others", (*run).faults},
		{"recording", "a start that is recorded, against one that is not", (*run).recording},
		{"full", "reading three times what the cache holds", (*run).full},
		{"verify", "what verification costs the node", (*run).verify},
		{"ingest", "taking an image in, against ctr images pull into overlayfs", (*run).ingest},
		{"dedup", "what all images take: by layers, by files, by chunks", (*run).dedup},
		{"same", "every entry of each image's root, in both modes; fsck.erofs of its metadata", (*run).same},
		{"million", "an image of 1,000,000 files", (*run).million},
	}
}

func Names() []string {
	var names []string
	for _, f := range allFigures() {
		names = append(names, f.name)
	}
	return names
}

// A verdict is a value with its target.
type verdict struct {
	Figure    string  `json:"figure"`
	What      string  `json:"what"`
	Overlayfs string  `json:"overlayfs,omitempty"` // the compared values, formatted
	Lighter   string  `json:"lighter,omitempty"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"` // "ratio", "s", "MB", ...
	Target    float64 `json:"target,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"` // whether Target is a minimum; otherwise it is a maximum
	Result    string  `json:"result"`             // PASS, MISS, or report (without a target)
	Note      string  `json:"note,omitempty"`
}

// Values of Result.
const (
	pass     = "PASS"
	miss     = "MISS"
	noTarget = "report"
)

func passed(ok bool) string {
	if ok {
		return pass
	}
	return miss
}

// atMost returns the value, the target and the result for a maximum.
func atMost(value, target float64) (float64, float64, string) {
	return value, target, passed(value <= target)
}

// judge adds a verdict about the ratio of two times in seconds, with a maximum target.
func (r *run) judge(figure, what string, overlayfs, lighter, target float64) {
	v := verdict{Figure: figure, What: what, Overlayfs: bench.Seconds(overlayfs), Lighter: bench.Seconds(lighter),
		Unit: "ratio"}
	v.Value, v.Target, v.Result = atMost(lighter/overlayfs, target)
	r.verdicts = append(r.verdicts, v)
}

// figures measures the selected figures. It continues after a figure that fails.
func (r *run) figures(ctx context.Context) error {
	var errs []error
	for _, f := range allFigures() {
		if len(r.Only) > 0 && !slices.Contains(r.Only, f.name) {
			continue
		}
		bench.Say("\n%s: %s", f.name, f.title)
		if err := f.measure(r, ctx); err != nil {
			err = fmt.Errorf("figure %s: %w", f.name, err)
			bench.Say("%v", err)
			errs = append(errs, err)
		}
		if err := r.write(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	r.printFigures()
	return errors.Join(errs...)
}

func (r *run) write() error {
	return errors.Join(bench.WriteJSON(filepath.Join(r.Out, "bench.json"), r.rows),
		bench.WriteJSON(filepath.Join(r.Out, "bench-figures.json"), r.verdicts))
}

// bothModes calls fn for both modes in each round. The order alternates, because each mode may
// affect the one after it.
func (r *run) bothModes(fn func(round int, mode string) error) error {
	for round := range r.Rounds {
		order := slices.Clone(modes)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, mode := range order {
			if err := fn(round, mode); err != nil {
				return err
			}
		}
	}
	return nil
}

// timesRow returns the row of a measurement of a single time, in seconds.
func timesRow(image, workload, mode string, times []float64) benchRow {
	m := bench.Median(times)
	return benchRow{row: row{Workload: workload, Mode: mode, RunS: m, TotalS: m}, Image: image,
		Rounds: len(times), TotalMin: slices.Min(times), TotalMax: slices.Max(times)}
}
