package figures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// Targets of the figure changes.
const (
	changesRatio = 1.0
	changesRead  = 1e6 // bytes of the image that may be read
)

// changes measures how long containerd's diff service takes for a container with one changed file.
// The image's files are neither cached nor in the page cache, as far as the container's start has
// not read them.
func (r *run) changes(ctx context.Context) error {
	if err := r.Need(ctx, "sci"); err != nil {
		return err
	}
	times, bytes := map[string][]float64{}, map[string][]float64{}
	err := r.bothModes(func(round int, mode string) error {
		took, moved, err := r.change(ctx, mode)
		if err != nil {
			return err
		}
		bench.Say("%d/%d  one changed file, %-10s %s  %s", round+1, r.Rounds, mode, bench.Seconds(took),
			bench.Size(moved))
		times[mode], bytes[mode] = append(times[mode], took), append(bytes[mode], float64(moved))
		return nil
	})
	if err != nil {
		return err
	}
	for _, mode := range modes {
		r.rows = append(r.rows, timesRow("sci", "diff of one changed file", mode, times[mode]))
	}
	r.judge("changes", "diff of one changed file", bench.Median(times[site.Overlayfs]),
		bench.Median(times[site.Lighter]), changesRatio)
	v := verdict{Figure: "changes", What: "read of the image meanwhile", Unit: "MB"}
	v.Value, v.Target, v.Result = atMost(bench.Median(bytes[site.Lighter])/1e6, changesRead/1e6)
	r.verdicts = append(r.verdicts, v)
	return nil
}

// change measures one diff: its time in seconds, and what the machine received meanwhile.
func (r *run) change(ctx context.Context, mode string) (took float64, moved int64, err error) {
	r.Site.SetNodeArgs("--prefetch=false", "--record=false")
	defer r.Site.SetNodeArgs()
	if err := r.Wipe(ctx); err != nil {
		return 0, 0, err
	}
	m := r.Site.Machine
	if _, err := m.Pull(ctx, mode, site.Reference("sci")); err != nil {
		return 0, 0, err
	}
	c, err := m.StartContainer(ctx, mode, site.Reference("sci"), "sleep", "infinity")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	if out, err := c.Exec(ctx, "sh", "-c", "echo changed >/etc/motd"); err != nil {
		return 0, 0, fmt.Errorf("change a file: %w: %s", err, out)
	}
	if err := site.DropCaches(); err != nil {
		return 0, 0, err
	}
	before, err := m.Bytes()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	_, err = m.Ctr(ctx, "snapshots", "--snapshotter", mode, "diff", c.ID)
	took = time.Since(began).Seconds()
	if err != nil {
		return 0, 0, err
	}
	after, err := m.Bytes()
	return took, after - before, err
}
