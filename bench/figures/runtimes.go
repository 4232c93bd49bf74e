package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
)

// launcher starts a workload as one container runtime does, from the request to the end of the
// container, and returns the container's output. The machine was wiped.
type launcher struct {
	name string
	// args are what a lazy start's node is started with.
	args []string
	// ready is called before a lazy start's time begins: with it, everything runs that would run on
	// such a machine. Nil: the machine is ready.
	ready      func(ctx context.Context) error
	lazy, full func(ctx context.Context, w bench.Workload) (output string, err error)
}

// runtimes measures the cold start of sci's print with each container runtime, lazily, and by the
// runtime's own full pull. ctr is the first runtime: the others are compared with it.
func (r *run) runtimes(ctx context.Context) error {
	at := slices.IndexFunc(r.workloads, func(w bench.Workload) bool { return w.String() == "sci/print" })
	if at < 0 {
		return errors.New("the configuration has no workload sci/print")
	}
	w := r.workloads[at]
	if err := r.Need(ctx, w.Image); err != nil {
		return err
	}
	lazy, full := map[string][]float64{}, map[string][]float64{}
	for round := range r.Rounds {
		for _, l := range r.launchers() {
			took, err := r.launch(ctx, l, w, true)
			if err != nil {
				return err
			}
			lazy[l.name] = append(lazy[l.name], took)
			if round >= r.Config.FullPulls {
				continue
			}
			if took, err = r.launch(ctx, l, w, false); err != nil {
				return err
			}
			full[l.name] = append(full[l.name], took)
		}
	}
	r.Site.SetNodeArgs()
	first := r.launchers()[0].name
	for _, l := range r.launchers() {
		own, pulled, ctr := bench.Median(lazy[l.name]), bench.Median(full[l.name]), bench.Median(lazy[first])
		row := timesRow(w.Image, w.Name+" with "+l.name, site.Lighter, lazy[l.name])
		row.Values = map[string]float64{"full_s": pulled}
		r.rows = append(r.rows, row)
		r.judge("runtimes", l.name+" : its full pull and start", pulled, own, runtimeFull)
		if l.name == first {
			continue
		}
		v := verdict{Figure: "runtimes", What: l.name + " : " + first, Overlayfs: bench.Seconds(ctr),
			Lighter: bench.Seconds(own), Unit: "ratio", Value: own / ctr, Target: runtimeRatio,
			Note: fmt.Sprintf("compared with %s through Lighter: %+.0f ms", first, 1000*(own-ctr))}
		v.Result = passed(v.Value <= runtimeRatio || own-ctr <= runtimeBehind)
		r.verdicts = append(r.verdicts, v)
	}
	return nil
}

// launch measures one start on a wiped machine, in seconds.
func (r *run) launch(ctx context.Context, l launcher, w bench.Workload, isLazy bool) (seconds float64, err error) {
	start, how := l.full, "full"
	r.Site.SetNodeArgs()
	if isLazy {
		start, how = l.lazy, "lazy"
		r.Site.SetNodeArgs(l.args...)
	}
	if err := r.Wipe(ctx); err != nil {
		return 0, err
	}
	if isLazy && l.ready != nil {
		if err := l.ready(ctx); err != nil {
			return 0, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	before, err := r.Site.Machine.Bytes()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	output, err := start(ctx, w)
	seconds = time.Since(began).Seconds()
	if err == nil && output != "hello\n" {
		err = fmt.Errorf("the container printed %q, want hello", output)
	}
	if err != nil {
		return 0, fmt.Errorf("%s, %s: %w", l.name, how, err)
	}
	after, err := r.Site.Machine.Bytes()
	bench.Say("%-14s %s  %s  %s", l.name, how, bench.Seconds(seconds), bench.Size(after-before))
	return seconds, err
}

// launchers returns the runtimes that are measured.
func (r *run) launchers() []launcher {
	m := r.Site.Machine
	images := filepath.Join(r.Site.Dir, "images")
	scratch := filepath.Join(r.Site.Dir, "scratch")
	return []launcher{
		{
			name: "ctr",
			lazy: func(ctx context.Context, w bench.Workload) (string, error) { return r.ctr(ctx, site.Lighter, w) },
			full: func(ctx context.Context, w bench.Workload) (string, error) { return r.ctr(ctx, site.Overlayfs, w) },
		},
		{
			name: "directory and bubblewrap",
			args: []string{"--directory", images},
			lazy: func(ctx context.Context, w bench.Workload) (string, error) {
				return m.Command(ctx, bubblewrap(filepath.Join(images, site.Reference(w.Image)), w)...)
			},
			full: func(ctx context.Context, w bench.Workload) (output string, err error) {
				defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
				image, root := filepath.Join(scratch, "layout:1"), filepath.Join(scratch, "bundle")
				for _, argv := range [][]string{
					{"skopeo", "copy", "--src-tls-verify=false", "docker://" + site.Reference(w.Image), "oci:" + image},
					{"umoci", "unpack", "--image", image, root},
				} {
					if _, err := m.Command(ctx, argv...); err != nil {
						return "", err
					}
				}
				return m.Command(ctx, bubblewrap(filepath.Join(root, "rootfs"), w)...)
			},
		},
		{
			name: "lighter run",
			lazy: func(ctx context.Context, w bench.Workload) (string, error) { return r.lighterRun(ctx, "never", w) },
			full: func(ctx context.Context, w bench.Workload) (string, error) { return r.lighterRun(ctx, "always", w) },
		},
	}
}

// ctr pulls an image, and runs a workload.
func (r *run) ctr(ctx context.Context, mode string, w bench.Workload) (output string, err error) {
	m, ref := r.Site.Machine, site.Reference(w.Image)
	if _, err := m.Pull(ctx, mode, ref); err != nil {
		return "", err
	}
	return m.Ctr(ctx, append([]string{"run", "--rm", "--snapshotter", mode, ref, "print"}, w.Argv...)...)
}

// bubblewrap returns a command that runs a workload with a directory as its root.
func bubblewrap(root string, w bench.Workload) []string {
	return append([]string{"bwrap", "--ro-bind", root, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"},
		w.Argv...)
}

// lighterRun runs a workload with lighter run. pull is when it pulls the whole image.
func (r *run) lighterRun(ctx context.Context, pull string, w bench.Workload) (output string, err error) {
	state := filepath.Join(r.Site.Dir, "containers")
	argv := []string{"--pull", pull, "--source-plain-http", "--state", state, site.Reference(w.Image)}
	return r.Site.Machine.Lighter(ctx, "run", append(argv, w.Argv...)...)
}
