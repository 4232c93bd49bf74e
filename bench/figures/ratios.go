package figures

import (
	"context"
	"fmt"
	"math"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// target holds the maximum ratios of a workload.
type target struct {
	time  float64 // pull + create + run, relative to overlayfs
	bytes float64 // received over the link, relative to the compressed image
}

var targets = map[string]target{
	"base/echo":     {0.13, 0.03},
	"python/hello":  {0.10, 0.055},
	"gcc/compile":   {0.24, 0.16},
	"sci/bash":      {0.05, 0.014},
	"sci/print":     {0.06, 0.022},
	"sci/cppyy":     {0.22, 0.26},
	"sci/uproot":    {0.17, 0.10},
	"ml/tensorflow": {0.42, 0.5},
}

// Other targets of the figure ratios.
const (
	samePull = 0.2 // difference of the pulls of base and ml, in seconds
	// The second run passes if it meets one of these targets.
	secondRatio  = 1.05 // Lighter's second run : overlayfs' second run
	secondBehind = 0.02 // Lighter's second run - overlayfs' second run, in seconds
)

// ratios measures a cold start of each workload in both modes.
func (r *run) ratios(ctx context.Context) error {
	if err := r.Need(ctx, r.images()...); err != nil {
		return err
	}
	starts := map[string][]bench.Start{}
	output := map[string]string{}
	err := r.bothModes(func(round int, mode string) error {
		for _, w := range r.workloads {
			c, err := r.ColdStart(ctx, mode, w)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w, mode, err)
			}
			bench.Say("%d/%d  %-16s %-10s pull %s  create %s  run %s  total %s  second %s  %s", round+1, r.Rounds, w,
				mode, bench.Seconds(c.Pull),
				bench.Seconds(c.Create), bench.Seconds(c.Run), bench.Seconds(c.Total()), bench.Seconds(c.Second),
				bench.Size(c.Bytes))
			if first, ok := output[w.String()]; ok && first != c.Output {
				return fmt.Errorf("output of %s: %q on %s, %q before", w, c.Output, mode, first)
			}
			output[w.String()] = c.Output
			starts[w.String()+mode] = append(starts[w.String()+mode], c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range r.workloads {
		if err := r.judgeWorkload(w, starts); err != nil {
			return err
		}
	}
	r.judgePulls(starts)
	return nil
}

// judgeWorkload adds the rows and verdicts of one workload.
func (r *run) judgeWorkload(w bench.Workload, starts map[string][]bench.Start) error {
	compressed, err := r.Config.Compressed(w.Image)
	if err != nil {
		return err
	}
	of := map[string]benchRow{}
	for _, mode := range modes {
		row := summary(w, mode, starts[w.String()+mode])
		row.Compressed = compressed
		of[mode] = row
		r.rows = append(r.rows, row)
	}
	over, lazy := of[site.Overlayfs], of[site.Lighter]
	t := targets[w.String()]
	r.judge("ratios", w.String()+" pull+create+run", over.TotalS, lazy.TotalS, t.time)

	v := verdict{Figure: "ratios", What: w.String() + " bytes : compressed", Overlayfs: bench.Size(over.Bytes),
		Lighter: bench.Size(lazy.Bytes), Unit: "ratio"}
	v.Value, v.Target, v.Result = atMost(float64(lazy.Bytes)/float64(compressed), t.bytes)
	r.verdicts = append(r.verdicts, v)

	behind := lazy.SecondS - over.SecondS
	v = verdict{Figure: "ratios", What: w.String() + " second run", Overlayfs: bench.Seconds(over.SecondS),
		Lighter: bench.Seconds(lazy.SecondS), Unit: "ratio",
		Value: lazy.SecondS / over.SecondS, Target: secondRatio, Note: fmt.Sprintf("%+.0f ms", 1000*behind)}
	v.Result = passed(v.Value <= secondRatio || behind <= secondBehind)
	r.verdicts = append(r.verdicts, v)
	return nil
}

func summary(w bench.Workload, mode string, all []bench.Start) benchRow {
	total := func(c bench.Start) float64 { return c.Total() }
	var totals []float64
	for _, c := range all {
		totals = append(totals, total(c))
	}
	r := timesRow(w.Image, w.Name, mode, totals)
	r.PullS = bench.MedianOf(all, func(c bench.Start) float64 { return c.Pull })
	r.CreateS = bench.MedianOf(all, func(c bench.Start) float64 { return c.Create })
	r.RunS = bench.MedianOf(all, func(c bench.Start) float64 { return c.Create + c.Run })
	r.SecondS = bench.MedianOf(all, func(c bench.Start) float64 { return c.Second })
	r.Bytes = int64(bench.MedianOf(all, func(c bench.Start) float64 { return float64(c.Bytes) }))
	r.PullBytes = int64(bench.MedianOf(all, func(c bench.Start) float64 { return float64(c.PullBytes) }))
	return r
}

// judgePulls compares the pull of the smallest image with that of the largest.
func (r *run) judgePulls(starts map[string][]bench.Start) {
	pull := func(key string) float64 {
		return bench.MedianOf(starts[key+site.Lighter], func(c bench.Start) float64 { return c.Pull })
	}
	base, ml := pull("base/echo"), pull("ml/tensorflow")
	v := verdict{Figure: "ratios", What: "pull alone: ml - base", Lighter: bench.Seconds(ml) + " - " +
		bench.Seconds(base), Unit: "s"}
	v.Value, v.Target, v.Result = atMost(math.Abs(ml-base), samePull)
	r.verdicts = append(r.verdicts, v)
}
