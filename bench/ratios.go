package main

import (
	"context"
	"fmt"
	"math"

	"lighter/test/testkit/site"
)

// target is what a workload must reach, Lighter to overlayfs.
type target struct {
	time  float64 // pull + create + run
	bytes float64 // over the link, to the compressed image
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

// Others of the table's targets.
const (
	samePull     = 0.2  // seconds: base's and ml's pull apart
	secondRatio  = 1.05 // second run to overlayfs' second run
	secondBehind = 0.02 // or so many seconds behind
)

// ratios is the heart of the benchmark: each workload, cold, both ways.
func (b *bench) ratios(ctx context.Context) error {
	if err := b.need(ctx, b.images()...); err != nil {
		return err
	}
	starts := map[string][]coldStart{}
	output := map[string]string{}
	err := b.bothModes(func(round int, mode string) error {
		for _, w := range b.workloads {
			c, err := b.coldStart(ctx, mode, w)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w, mode, err)
			}
			say("%d/%d  %-16s %-10s pull %s  create %s  run %s  total %s  second %s  %s", round+1, b.rounds, w, mode, seconds(c.pull.Seconds()),
				seconds(c.create.Seconds()), seconds(c.run.Seconds()), seconds(c.total().Seconds()), seconds(c.second.Seconds()), size(c.bytes))
			if first, ok := output[w.String()]; ok && first != c.output {
				return fmt.Errorf("%s wrote %q on %s, and before %q", w, c.output, mode, first)
			}
			output[w.String()] = c.output
			starts[w.String()+mode] = append(starts[w.String()+mode], c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range b.workloads {
		if err := b.judgeWorkload(w, starts); err != nil {
			return err
		}
	}
	b.judgePulls(starts)
	return nil
}

// judgeWorkload turns the rounds of one workload into rows and verdicts.
func (b *bench) judgeWorkload(w workload, starts map[string][]coldStart) error {
	compressed, err := compressedSize(w.Image)
	if err != nil {
		return err
	}
	of := map[string]benchRow{}
	for _, mode := range modes {
		r := summary(w, mode, starts[w.String()+mode])
		r.Compressed = compressed
		of[mode] = r
		b.rows = append(b.rows, r)
	}
	over, lazy := of[site.Overlayfs], of[site.Lighter]
	t := targets[w.String()]
	b.judge("ratios", w.String()+" pull+create+run", over.TotalS, lazy.TotalS, t.time)

	v := verdict{Figure: "ratios", What: w.String() + " bytes : compressed", Overlayfs: size(over.Bytes), Lighter: size(lazy.Bytes), Unit: "ratio"}
	v.Value, v.Target, v.Result = atMost(float64(lazy.Bytes)/float64(compressed), t.bytes)
	b.verdicts = append(b.verdicts, v)

	behind := lazy.SecondS - over.SecondS
	v = verdict{Figure: "ratios", What: w.String() + " second run", Overlayfs: seconds(over.SecondS), Lighter: seconds(lazy.SecondS), Unit: "ratio",
		Value: lazy.SecondS / over.SecondS, Target: secondRatio, Note: fmt.Sprintf("%+.0f ms", 1000*behind)}
	v.Result = passed(v.Value <= secondRatio || behind <= secondBehind)
	b.verdicts = append(b.verdicts, v)
	return nil
}

func summary(w workload, mode string, all []coldStart) benchRow {
	total := func(c coldStart) float64 { return c.total().Seconds() }
	var totals []float64
	for _, c := range all {
		totals = append(totals, total(c))
	}
	r := timesRow(w.Image, w.Workload, mode, totals)
	r.PullS = medianOf(all, func(c coldStart) float64 { return c.pull.Seconds() })
	r.CreateS = medianOf(all, func(c coldStart) float64 { return c.create.Seconds() })
	r.RunS = medianOf(all, func(c coldStart) float64 { return (c.create + c.run).Seconds() })
	r.SecondS = medianOf(all, func(c coldStart) float64 { return c.second.Seconds() })
	r.Bytes = int64(medianOf(all, func(c coldStart) float64 { return float64(c.bytes) }))
	r.PullBytes = int64(medianOf(all, func(c coldStart) float64 { return float64(c.pullBytes) }))
	return r
}

// judgePulls compares the pull of the smallest image with that of the largest.
func (b *bench) judgePulls(starts map[string][]coldStart) {
	pull := func(key string) float64 {
		return medianOf(starts[key+site.Lighter], func(c coldStart) float64 { return c.pull.Seconds() })
	}
	base, ml := pull("base/echo"), pull("ml/tensorflow")
	v := verdict{Figure: "ratios", What: "pull alone: ml - base", Lighter: seconds(ml) + " - " + seconds(base), Unit: "s"}
	v.Value, v.Target, v.Result = atMost(math.Abs(ml-base), samePull)
	b.verdicts = append(b.verdicts, v)
}
