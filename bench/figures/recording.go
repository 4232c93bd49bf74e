package figures

import (
	"context"
	"errors"
	"fmt"

	"lighter/bench"
	"lighter/node/report"
	"lighter/test/testkit/site"
)

const (
	// recordingPairs is the number of compared pairs of starts. recordingCost is the maximum ratio
	// of a recorded start to an unrecorded one.
	recordingPairs = 20
	recordingCost  = 1.02
)

// recording measures the cost of recording a start. All data is on the disk, so that the network
// does not hide the cost. The page cache is empty.
func (r *run) recording(ctx context.Context) error {
	var errs []error
	for _, w := range r.workloads {
		if name := w.String(); name == "python/hello" || name == "sci/cppyy" {
			errs = append(errs, r.recordingOf(ctx, w))
		}
	}
	return errors.Join(errs...)
}

func (r *run) recordingOf(ctx context.Context, w bench.Workload) error {
	if err := r.Need(ctx, w.Image); err != nil {
		return err
	}
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	m := r.Site.Machine
	if _, err := m.Pull(ctx, site.Lighter, site.Reference(w.Image)); err != nil {
		return err
	}
	if _, err := m.Run(ctx, site.Lighter, site.Reference(w.Image), w.Argv...); err != nil {
		return err
	}
	times := map[bool][]float64{}
	var ratios []float64
	for pair := range recordingPairs {
		for _, on := range []bool{pair%2 == 0, pair%2 == 1} {
			took, err := r.startRecorded(ctx, w, on)
			if err != nil {
				return err
			}
			times[on] = append(times[on], took)
		}
		ratios = append(ratios, times[true][pair]/times[false][pair])
	}
	with, without := bench.Median(times[true]), bench.Median(times[false])
	bench.Say("%-14s recorded %s, not recorded %s; median of the pairs' ratios %.3f", w, bench.Seconds(with),
		bench.Seconds(without), bench.Median(ratios))
	r.rows = append(r.rows, timesRow(w.Image, w.Name+", recorded", site.Lighter, times[true]),
		timesRow(w.Image, w.Name+", not recorded", site.Lighter, times[false]))
	v := verdict{Figure: "recording", What: w.String() + ": recorded : not recorded", Lighter: bench.Seconds(with) +
		" : " + bench.Seconds(without), Unit: "ratio",
		Note: fmt.Sprintf("median of the ratios of %d pairs; ratio of the medians %.3f", recordingPairs, with/without)}
	v.Value, v.Target, v.Result = atMost(bench.Median(ratios), recordingCost)
	r.verdicts = append(r.verdicts, v)
	return nil
}

// startRecorded starts a container of an unmounted image on a node with or without recording, and
// returns the duration.
func (r *run) startRecorded(ctx context.Context, w bench.Workload, on bool) (float64, error) {
	m := r.Site.Machine
	if err := m.StopNode(); err != nil {
		return 0, err
	}
	if err := m.StartNode(ctx, fmt.Sprintf("--record=%t", on)); err != nil {
		return 0, err
	}
	if err := m.Reconnect(ctx); err != nil {
		return 0, err
	}
	if err := site.DropCaches(); err != nil {
		return 0, err
	}
	ran, err := m.Run(ctx, site.Lighter, site.Reference(w.Image), w.Argv...)
	if err != nil {
		return 0, err
	}
	var status report.Status
	if err := m.NodeStatus(ctx, &status); err != nil {
		return 0, err
	}
	if recorded := status.Recording.Active == 1; recorded != on {
		return 0, fmt.Errorf("recording of %s: got %t, want %t", w, recorded, on)
	}
	return ran.Total().Seconds(), nil
}
