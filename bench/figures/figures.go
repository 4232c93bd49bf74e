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
	measure func(*table, context.Context) error
}

// allFigures returns the figures in the order of measurement. million is the last one, because its
// files would change the hub for the others.
func allFigures() []figure {
	return []figure{
		{"ratios", "cold start by full pull and through Lighter: time, bytes, pull alone, second run", (*table).ratios},
		{"reads", "data cached, page cache dropped: the largest file and 5,000 small ones", (*table).reads},
		{"walk", "every name with stat, cold and hot", (*table).walks},
		{"first", "first read of a large file that is nowhere cached", (*table).firstRead},
		{"memory", "the node's memory, everything of ml read once", (*table).memory},
		{"pagecache", "page cache of ten images on one base", (*table).pageCache},
		{"restart", "a node's start, with mounts to take over and after a reboot", (*table).restarts},
		{"faults", "single faults, alone and beside others", (*table).faults},
		{"recording", "a start that is recorded, against one that is not", (*table).recording},
		{"full", "reading three times what the cache holds", (*table).full},
		{"verify", "what verification costs the node", (*table).verify},
		{"ingest", "taking an image in, against ctr images pull into overlayfs", (*table).ingest},
		{"dedup", "what all images take: by layers, by files, by chunks", (*table).dedup},
		{"same", "every entry of each image's root, in both modes; fsck.erofs of its metadata", (*table).same},
		{"million", "an image of 1,000,000 files", (*table).million},
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
func (b *table) judge(figure, what string, overlayfs, lighter, target float64) {
	v := verdict{Figure: figure, What: what, Overlayfs: bench.Seconds(overlayfs), Lighter: bench.Seconds(lighter),
		Unit: "ratio"}
	v.Value, v.Target, v.Result = atMost(lighter/overlayfs, target)
	b.verdicts = append(b.verdicts, v)
}

// figures measures the selected figures. It continues after a figure that fails.
func (b *table) figures(ctx context.Context) error {
	var errs []error
	for _, f := range allFigures() {
		if len(b.Only) > 0 && !slices.Contains(b.Only, f.name) {
			continue
		}
		bench.Say("\n%s: %s", f.name, f.title)
		if err := f.measure(b, ctx); err != nil {
			err = fmt.Errorf("figure %s: %w", f.name, err)
			bench.Say("%v", err)
			errs = append(errs, err)
		}
		if err := b.write(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	b.printFigures()
	return errors.Join(errs...)
}

func (b *table) write() error {
	return errors.Join(bench.WriteJSON(filepath.Join(b.Out, "bench.json"), b.rows),
		bench.WriteJSON(filepath.Join(b.Out, "bench-figures.json"), b.verdicts))
}

// bothModes calls fn for both modes in each round. The order alternates, because each mode may
// affect the one after it.
func (b *table) bothModes(fn func(round int, mode string) error) error {
	for round := range b.Rounds {
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
