package figures

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lighter/bench"
	"lighter/node/control"
	"lighter/node/keeper"
	"lighter/node/report"
	"lighter/test/testkit/site"
)

// manyMounts is the largest number of trees that a restarted node serves.
const manyMounts = 200

// restarts measures the time from a node's start to its first answer, with trees to take over from
// the previous node, and after a reboot.
func (r *run) restarts(ctx context.Context) error {
	images, err := r.derived(ctx, "base", manyMounts)
	if err != nil {
		return err
	}
	m := r.Site.Machine
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	mounted := 0
	for _, n := range []int{0, 1, len(images)} {
		for ; mounted < n; mounted++ {
			ref := site.Reference(images[mounted])
			if _, err := m.Pull(ctx, site.Lighter, ref); err != nil {
				return err
			}
			if _, err := m.Ctr(ctx, "containers", "create", "--snapshotter", site.Lighter, ref,
				images[mounted]); err != nil {
				return err
			}
		}
		err := r.restartRounds(ctx, fmt.Sprintf("%d mounts taken over", n), n,
			func() error { m.KillNode(); return nil })
		if err != nil {
			return err
		}
	}
	return r.restartRounds(ctx, fmt.Sprintf("after a reboot, %d trees on the disk", mounted), 0,
		func() error { return r.reboot(ctx) })
}

// restartRounds ends the node and measures its next start, once in each round. mounts is the number
// of trees that the node must serve after its start.
func (r *run) restartRounds(ctx context.Context, what string, mounts int, end func() error) error {
	var times []float64
	for range r.Rounds {
		if err := end(); err != nil {
			return err
		}
		took, err := r.startNode(ctx, mounts)
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	bench.Say("%s: ready after %s", what, bench.Seconds(bench.Median(times)))
	r.rows = append(r.rows, timesRow("base", "restart: "+what, site.Lighter, times))
	r.verdicts = append(r.verdicts, verdict{Figure: "restart", What: what, Value: bench.Median(times), Unit: "s",
		Result: noTarget})
	return nil
}

// startNode starts the node and returns the time until its first answer, in seconds.
func (r *run) startNode(ctx context.Context, mounts int) (float64, error) {
	m := r.Site.Machine
	start := time.Now()
	started := make(chan error, 1)
	go func() { started <- m.StartNode(ctx) }()
	client := control.New(m.NodeRoot())
	var status report.Status
	var err error
	for {
		if status, err = client.Status(ctx); !errors.Is(err, control.ErrNoDaemon) {
			break
		}
		if time.Since(start) > time.Minute {
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(start).Seconds()
	if err := errors.Join(err, <-started); err != nil {
		return 0, err
	}
	if len(status.Mounts) != mounts {
		return 0, fmt.Errorf("the node serves %d trees, want %d", len(status.Mounts), mounts)
	}
	return took, nil
}

// reboot removes the node's mounts and processes, like a reboot. Its files remain.
func (r *run) reboot(ctx context.Context) error {
	m := r.Site.Machine
	m.KillNode()
	if err := (keeper.Process{Root: m.NodeRoot()}).Drop(ctx); err != nil {
		return err
	}
	trees, err := filepath.Glob(filepath.Join(m.NodeRoot(), "mounts/*"))
	for _, point := range append(trees, filepath.Join(m.NodeRoot(), "devices")) {
		// EINVAL: the mount is already gone
		if failed := unix.Unmount(point, unix.MNT_DETACH); failed != nil && failed != unix.EINVAL {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", point, failed))
		}
	}
	return err
}
