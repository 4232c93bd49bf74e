package figures

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"lighter/bench"
)

// figure is one line, or a few that are measured together, of the table of
// what Lighter must reach.
type figure struct {
	name    string
	title   string
	measure func(*table, context.Context) error
}

// allFigures are in the order in which they are measured. Million is the last:
// the others' hub must not know a million files.
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

// A verdict is one number beside its target.
type verdict struct {
	Figure    string  `json:"figure"`
	What      string  `json:"what"`
	Overlayfs string  `json:"overlayfs,omitempty"` // the two that are compared, for people
	Lighter   string  `json:"lighter,omitempty"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"` // "ratio", "s", "MB", ...
	Target    float64 `json:"target,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"` // Value must not be less than Target; else not more
	Result    string  `json:"result"`             // PASS, MISS, or report: there is no target
	Note      string  `json:"note,omitempty"`
}

// The words of Result.
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

// atMost is the verdict on a value that must not be greater than target.
func atMost(value, target float64) (float64, float64, string) {
	return value, target, passed(value <= target)
}

// judge adds a verdict of a ratio, overlayfs and Lighter being seconds, that
// must be at most target.
func (b *table) judge(figure, what string, overlayfs, lighter, target float64) {
	v := verdict{Figure: figure, What: what, Overlayfs: bench.Seconds(overlayfs), Lighter: bench.Seconds(lighter),
		Unit: "ratio"}
	v.Value, v.Target, v.Result = atMost(lighter/overlayfs, target)
	b.verdicts = append(b.verdicts, v)
}

// figures measures what was asked for. A figure that fails does not keep the
// others from being measured.
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

// bothModes calls fn for both, rounds times, the other one first in each second
// round: what one leaves behind must not always meet the same other.
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

// timesRow is the row of a measurement that is a time alone, in seconds.
func timesRow(image, workload, mode string, times []float64) benchRow {
	m := bench.Median(times)
	return benchRow{row: row{Workload: workload, Mode: mode, RunS: m, TotalS: m}, Image: image,
		Rounds: len(times), TotalMin: slices.Min(times), TotalMax: slices.Max(times)}
}
