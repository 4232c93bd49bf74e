package figures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Targets of the figure runtimes.
const (
	// A runtime's start passes if it meets one of these: its time relative to that of ctr, or the
	// difference to it in seconds.
	runtimeRatio  = 1.3
	runtimeBehind = 0.15
	// runtimeFull is the maximum ratio of a start to the same runtime's full pull and start.
	runtimeFull = 0.08
	// lazyShare is the most that a lazy start receives of the image's layers.
	lazyShare = 0.3
)

// A launcher starts a workload as one container runtime does: lazily (the mode site.Lighter), or by
// the runtime's own full pull as it is configured without Lighter (site.Overlayfs).
type launcher interface {
	name() string
	// prepare wipes the machine, and starts what runs on such a machine before the request.
	prepare(ctx context.Context, mode string) error
	// start is what is measured: from the request to the end of the container. It fails if the
	// workload does not do what it should.
	start(ctx context.Context, mode string, w bench.Workload) error
	// end stops what prepare has started. started tells whether start has succeeded: then end may
	// check more of what it has done.
	end(ctx context.Context, started bool) error
}

// runtimes measures the cold start of sci's print with each container runtime, lazily, and by the
// runtime's own full pull. ctr is the first runtime: the others are compared with it.
func (r *run) runtimes(ctx context.Context) error {
	at := slices.IndexFunc(r.workloads, func(w bench.Workload) bool { return w.String() == "sci/print" })
	if at < 0 {
		return errors.New("the configuration has no workload sci/print")
	}
	w := r.workloads[at]
	launchers, err := r.launchers(ctx)
	if err != nil {
		return err
	}
	if err := r.Need(ctx, w.Image); err != nil {
		return err
	}
	// The hub knows the workload when the first runtime is measured, as it does for the others.
	if _, err := r.launch(ctx, launchers[0], site.Lighter, w); err != nil {
		return err
	}
	times := map[string]map[string][]float64{site.Lighter: {}, site.Overlayfs: {}}
	for round := range r.Rounds {
		for _, l := range launchers {
			for _, mode := range []string{site.Lighter, site.Overlayfs} {
				if mode == site.Overlayfs && round >= r.Config.FullPulls {
					continue
				}
				took, err := r.launch(ctx, l, mode, w)
				if err != nil {
					return err
				}
				times[mode][l.name()] = append(times[mode][l.name()], took)
			}
		}
	}
	first := launchers[0].name()
	ctr := bench.Median(times[site.Lighter][first])
	for _, l := range launchers {
		lazy, full := bench.Median(times[site.Lighter][l.name()]), bench.Median(times[site.Overlayfs][l.name()])
		row := timesRow(w.Image, w.Name+" with "+l.name(), site.Lighter, times[site.Lighter][l.name()])
		row.Values = map[string]float64{"full_s": full}
		r.rows = append(r.rows, row)
		r.judge("runtimes", l.name()+" : its full pull and start", full, lazy, runtimeFull)
		if l.name() == first {
			continue
		}
		r.judgeEither("runtimes", l.name()+" : "+first, ctr, lazy, runtimeRatio, runtimeBehind,
			"compared with "+first+" through Lighter: ")
	}
	return nil
}

// launch measures one start on a wiped machine, in seconds.
func (r *run) launch(ctx context.Context, l launcher, mode string, w bench.Workload) (seconds float64, err error) {
	started := false
	defer func() {
		err = errors.Join(err, l.end(ctx, started))
		r.Site.SetNodeArgs()
		r.Site.SetConfig("")
		if err != nil {
			err = fmt.Errorf("%s, %s: %w", l.name(), mode, err)
		}
	}()
	if err := l.prepare(ctx, mode); err != nil {
		return 0, err
	}
	if err := site.DropCaches(); err != nil {
		return 0, err
	}
	before, err := r.Site.Machine.Bytes()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := l.start(ctx, mode, w); err != nil {
		return 0, err
	}
	seconds, started = time.Since(began).Seconds(), true
	after, err := r.Site.Machine.Bytes()
	if err != nil {
		return 0, err
	}
	bench.Say("%-24s %-10s %s  %s", l.name(), mode, bench.Seconds(seconds), bench.Size(after-before))
	layers, err := r.Config.Compressed(w.Image)
	if lazy := float64(after-before) <= lazyShare*float64(layers); err == nil && lazy != (mode == site.Lighter) {
		err = fmt.Errorf("it received %s of %s", bench.Size(after-before), bench.Size(layers))
	}
	return seconds, err
}

// printed returns an error if a workload has failed, or its output is not what sci's print prints.
func printed(output string, err error) error {
	if err == nil && output != "hello\n" {
		err = fmt.Errorf("the container printed %q, want hello", output)
	}
	return err
}
