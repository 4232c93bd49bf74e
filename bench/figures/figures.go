package figures

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"lighter/bench"
)

// figure is a measurement. The printed table has one line for it, or a few.
type figure struct {
	name    string
	title   string
	measure func(*run, context.Context) error
}

// allFigures returns the figures in the order of measurement. million is the last one, because a
// hub with its files would change the other figures.
func allFigures() []figure {
	return []figure{
		{"ratios", "cold start by full pull and through Lighter: time, bytes, pull alone, second run", (*run).ratios},
		{"runtimes", "cold start of sci's print with each container runtime", (*run).runtimes},
		{"changes", "the layer of one changed file on sci, against overlayfs", (*run).changes},
		{"names", "the directory of images with 10,000 names", (*run).names},
		{"reads", "data cached, page cache dropped: the largest file and 5,000 small ones", (*run).reads},
		{"walk", "every name with stat, cold and hot", (*run).walks},
		{"first", "first read of a large file, of which no chunk is cached", (*run).firstRead},
		{"memory", "the node's memory, everything of ml read once", (*run).memory},
		{"pagecache", "page cache of ten images on one base", (*run).pageCache},
		{"restart", "a node's start, with mounts to take over and after a reboot", (*run).restarts},
		{"faults", "single faults, one at a time and 16 at a time", (*run).faults},
		{"recording", "a start with recording, against a start without it", (*run).recording},
		{"full", "reading a file of three times the cache's size", (*run).full},
		{"verify", "the node's processor time for verification", (*run).verify},
		{"ingest", "ingesting an image, against `ctr images pull` into overlayfs", (*run).ingest},
		{"attach", "processor time of lighter attach, against soci create; size of the artifact", (*run).attach},
		{"export", "processor time of lighter export to eStargz, against stargz' converter", (*run).export},
		{"pushed", "a pull of python just after its push; when sci is ready after its push", (*run).pushed},
		{"through", "sci pulled through a hub that has never seen it, and its start on the next node", (*run).through},
		{"pushthrough", "sci pushed through a hub to a registry, and when it is ready", (*run).pushThrough},
		{"dedup", "the size of all images, with each layer, each file or each chunk stored once", (*run).dedup},
		{"same", "every entry of each image, in both modes; fsck.erofs of its metadata image", (*run).same},
		{"million", "an image of 1,000,000 files", (*run).million},
	}
}

// Describe returns a line for each figure, with its name and its title.
func Describe() string {
	var b strings.Builder
	for _, f := range allFigures() {
		fmt.Fprintf(&b, "  %-12s %s\n", f.name, f.title)
	}
	return b.String()
}

// Names returns the names of all figures.
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
	Overlayfs string  `json:"overlayfs,omitempty"` // the compared values, formatted; What names another program
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

// judgeEither is judge with a second target: the figure also passes if it is at most behind seconds
// above base. note comes before the difference.
func (r *run) judgeEither(figure, what string, base, lighter, target, behind float64, note string) {
	v := verdict{Figure: figure, What: what, Overlayfs: bench.Seconds(base), Lighter: bench.Seconds(lighter),
		Unit: "ratio", Value: lighter / base, Target: target,
		Note: fmt.Sprintf("%s%+.0f ms", note, 1000*(lighter-base))}
	v.Result = passed(v.Value <= target || lighter-base <= behind)
	r.verdicts = append(r.verdicts, v)
}

// figures measures the selected figures. It continues after a figure that fails.
func (r *run) figures(ctx context.Context) error {
	var errs []error
	for _, f := range allFigures() {
		if !r.Selects(f.name) {
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

// bothModes calls fn for both modes in each round. The order of the modes alternates, because the
// first mode of a round may affect the second.
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
