package figures

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"lighter/bench"
	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/site"
)

// Targets of the figure changes.
const (
	changesRatio = 1.0
	changesRead  = 1e6 // bytes of the image that may be read
)

// changed holds the figures of one diff: its time in seconds, and what the machine received
// meanwhile.
type changed struct {
	took  float64
	bytes int64
}

// changes measures how long containerd's diff service and Docker take for the layer of a container
// with one changed file. The image's files are neither cached nor in the page cache, as far as the
// container's start has not read them.
func (r *run) changes(ctx context.Context) error {
	if err := dockerd.Built(); err != nil {
		return err
	}
	if err := r.Need(ctx, "sci"); err != nil {
		return err
	}
	for _, c := range []struct {
		what    string
		measure func(ctx context.Context, mode string) (changed, error)
	}{{"ctr snapshots diff", r.snapshotDiff}, {"docker commit", r.dockerCommit}} {
		times, bytes := map[string][]float64{}, []float64{}
		err := r.bothModes(func(round int, mode string) error {
			r.Site.SetNodeArgs("--prefetch=false", "--record=false")
			defer r.Site.SetNodeArgs()
			one, err := c.measure(ctx, mode)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.what, mode, err)
			}
			bench.Say("%d/%d  %-18s  %-10s %s  %s", round+1, r.Rounds, c.what, mode, bench.Seconds(one.took),
				bench.Size(one.bytes))
			times[mode] = append(times[mode], one.took)
			if mode == site.Lighter {
				bytes = append(bytes, float64(one.bytes))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, mode := range modes {
			r.rows = append(r.rows, timesRow("sci", c.what+" of one changed file", mode, times[mode]))
		}
		r.judge("changes", c.what+" of one changed file", bench.Median(times[site.Overlayfs]),
			bench.Median(times[site.Lighter]), changesRatio)
		v := verdict{Figure: "changes", What: c.what + ": read of the image", Unit: "MB"}
		v.Value, v.Target, v.Result = atMost(bench.Median(bytes)/1e6, changesRead/1e6)
		r.verdicts = append(r.verdicts, v)
	}
	return nil
}

// changeFile is what a container runs that changes a file.
var changeFile = []string{"sh", "-c", "echo changed >/etc/motd"}

// snapshotDiff measures `ctr snapshots diff`.
func (r *run) snapshotDiff(ctx context.Context, mode string) (one changed, err error) {
	if err := r.Wipe(ctx); err != nil {
		return one, err
	}
	m := r.Site.Machine
	if _, err := m.Pull(ctx, mode, site.Reference("sci")); err != nil {
		return one, err
	}
	c, err := m.StartContainer(ctx, mode, site.Reference("sci"), "sleep", "infinity")
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	if out, err := c.Exec(ctx, changeFile...); err != nil {
		return one, fmt.Errorf("change a file: %w: %s", err, out)
	}
	return r.timeChange(func() error {
		_, err := m.Ctr(ctx, "snapshots", "--snapshotter", mode, "diff", c.ID)
		return err
	})
}

// dockerCommit measures `docker commit`.
func (r *run) dockerCommit(ctx context.Context, mode string) (one changed, err error) {
	d := &docker{run: r}
	defer func() { err = errors.Join(err, d.end(ctx, false)) }()
	if err := d.prepare(ctx, mode); err != nil {
		return one, err
	}
	if err := d.engine.Pull(ctx, site.Reference("sci")); err != nil {
		return one, err
	}
	id, err := d.engine.Create(ctx, site.Reference("sci"), "sleep", "infinity")
	if err != nil {
		return one, err
	}
	if err := d.engine.StartContainer(ctx, id); err != nil {
		return one, err
	}
	if _, err := d.engine.Exec(ctx, id, changeFile...); err != nil {
		return one, fmt.Errorf("change a file: %w", err)
	}
	return r.timeChange(func() error {
		return d.engine.Ask(ctx, http.MethodPost, "/commit?repo=changed&container="+id, map[string]any{}, nil)
	})
}

// timeChange measures fn, with an empty page cache.
func (r *run) timeChange(fn func() error) (one changed, err error) {
	if err := site.DropCaches(); err != nil {
		return one, err
	}
	before, err := r.Site.Machine.Bytes()
	if err != nil {
		return one, err
	}
	began := time.Now()
	if err := fn(); err != nil {
		return one, err
	}
	one.took = time.Since(began).Seconds()
	after, err := r.Site.Machine.Bytes()
	one.bytes = after - before
	return one, err
}
