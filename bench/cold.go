package main

import (
	"context"
	"fmt"
	"time"

	"lighter/test/testkit/site"
)

// coldStart is what one cold start took: a pull and the first container.
type coldStart struct {
	pull, create, run time.Duration
	second            time.Duration // create and run of a second container, at once after the first
	pullBytes, bytes  int64         // over the link: by the pull; up to the end of the first container
	output            string
}

func (c coldStart) total() time.Duration { return c.pull + c.create + c.run }

// coldStart wipes the machine, drops the page cache, and measures.
func (b *bench) coldStart(ctx context.Context, mode string, w workload) (c coldStart, err error) {
	m := b.site.Machine
	if err := b.wipe(ctx); err != nil {
		return c, err
	}
	before, err := m.Bytes()
	if err != nil {
		return c, err
	}
	if c.pull, err = m.Pull(ctx, mode, site.Reference(w.Image)); err != nil {
		return c, err
	}
	pulled, err := m.Bytes()
	if err != nil {
		return c, err
	}
	first, err := m.Run(ctx, mode, site.Reference(w.Image), w.Argv...)
	if err != nil {
		return c, err
	}
	after, err := m.Bytes()
	if err != nil {
		return c, err
	}
	c.create, c.run, c.output = first.Create, first.Start, first.Output
	c.pullBytes, c.bytes = pulled-before, after-before
	second, err := m.Run(ctx, mode, site.Reference(w.Image), w.Argv...)
	if err != nil {
		return c, err
	}
	if second.Output != first.Output {
		return c, fmt.Errorf("%s wrote %q, and the second time %q", w, first.Output, second.Output)
	}
	c.second = second.Total()
	if mode == site.Lighter {
		err = b.assertLazy(ctx, w.Image)
	}
	return c, err
}

// A row is one line of out/demo.json.
type row struct {
	Workload string  `json:"workload"`
	Mode     string  `json:"mode"`    // "overlayfs" or "lighter"
	PullS    float64 `json:"pull_s"`  // seconds
	RunS     float64 `json:"run_s"`   // create and run, seconds
	TotalS   float64 `json:"total_s"` // seconds
	Bytes    int64   `json:"bytes"`   // over the link
}

func (c coldStart) row(mode string, w workload) row {
	return row{Workload: w.Workload, Mode: mode, PullS: c.pull.Seconds(), RunS: (c.create + c.run).Seconds(),
		TotalS: c.total().Seconds(), Bytes: c.bytes}
}

// A benchRow is one line of out/bench.json: the medians of several rounds.
type benchRow struct {
	row
	Image      string             `json:"image"`
	Rounds     int                `json:"rounds"`
	TotalMin   float64            `json:"total_min_s"`
	TotalMax   float64            `json:"total_max_s"`
	CreateS    float64            `json:"create_s,omitempty"`
	SecondS    float64            `json:"second_s,omitempty"`         // create and run of a second container
	PullBytes  int64              `json:"pull_bytes,omitempty"`       // over the link by the pull alone
	Compressed int64              `json:"compressed_bytes,omitempty"` // of the image's layers
	Values     map[string]float64 `json:"values,omitempty"`           // what else was measured; the unit ends the name
}
