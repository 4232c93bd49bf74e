// Package health detects when only a restart helps a node: if the kernel's requests are no longer
// answered, so that containers hang. The service manager's watchdog and /healthz use it.
//
// A node without hub or disk is healthy, because it serves the chunks that it can still get. A node
// that stops is healthy, too.
package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"lighter/node/fuse"
	"lighter/node/mount"
)

const (
	// maxReadTime is how long a read may be unanswered in a healthy node. Package fuse answers each
	// read within 110 s.
	maxReadTime = 3 * time.Minute
	// maxStall is how long requests may wait in the kernel while the node receives none. A healthy
	// node receives them within microseconds.
	maxStall = 10 * time.Second
	// flushInterval is the interval at which Flush checks the requests in the kernel. Flush probes
	// the node if requests have waited in the kernel for at least this time.
	flushInterval = 2 * time.Second
	// checkTimeout bounds the wait for the kernel's answer in Healthy.
	checkTimeout = 10 * time.Second
)

// Devices are the node's devices.
type Devices interface {
	// Unserved reports that the kernel's requests are no longer answered.
	Unserved() bool
	// Stats returns the figures of the requests.
	Stats() fuse.ServerStats
}

// Check checks one node. It is safe for concurrent use.
type Check struct {
	root    string
	devices Devices
	probe   singleflight.Group
	stopped atomic.Bool
}

// New returns the check of the node with that root.
func New(root string, devices Devices) *Check { return &Check{root: root, devices: devices} }

// Stop makes the check succeed from now on, because the next daemon will answer the unanswered
// requests.
func (c *Check) Stop() { c.stopped.Store(true) }

// Alive fails if only a restart can help. It makes the kernel send a request to the node, and waits
// for the node's answer for timeout at most.
func (c *Check) Alive(ctx context.Context, timeout time.Duration) error {
	switch {
	case c.stopped.Load():
		return nil
	case c.devices.Unserved():
		return errors.New("the kernel's reads are not answered any more")
	}
	if err := checkOldest(c.devices.Stats().Oldest); err != nil {
		return err
	}
	return c.answers(ctx, timeout)
}

// Healthy fails if Alive fails, or if requests stay in the kernel. The watchdog ignores requests in
// the kernel: if a previous daemon has lost them, they wait for ever, and a restart does not help.
func (c *Check) Healthy(ctx context.Context) error {
	if err := c.Alive(ctx, checkTimeout); err != nil || c.stopped.Load() {
		return err
	}
	return checkStall(c.devices.Stats())
}

// checkOldest fails if the oldest read has been unanswered for too long.
func checkOldest(oldest time.Duration) error {
	if oldest > maxReadTime {
		return fmt.Errorf("a read has been unanswered for %s", oldest.Round(time.Second))
	}
	return nil
}

// checkStall fails if requests have waited in the kernel for too long.
func checkStall(s fuse.ServerStats) error {
	if s.Stalled > maxStall {
		return fmt.Errorf("reads wait in the kernel, and the node has received none for %s: "+
			"the kernel has %d unanswered requests, the node %d reads", s.Stalled.Round(time.Second), s.InKernel,
			s.Active+s.Queued)
	}
	return nil
}

// answers fails if the node does not answer a request of the kernel within timeout. The request is
// not a read, and does not wait for reads. A separate process causes the request. This process
// cannot be killed while it waits for the answer. The daemon must not wait itself: if it hangs, it
// has to be killed before the next daemon can start.
func (c *Check) answers(ctx context.Context, timeout time.Duration) error {
	// One probe at a time, because a probe that gets no answer waits until the connection ends.
	answered := c.probe.DoChan("", func() (any, error) {
		output, err := exec.Command("/proc/self/exe", "probe", c.root).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(output))
		}
		return nil, nil
	})
	select {
	case answer := <-answered:
		if answer.Err != nil {
			return fmt.Errorf("probe the node's devices: %w", answer.Err)
		}
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("the node's devices do not answer within %s", timeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Probe makes the kernel send requests to the node with that root, and returns when the node has
// answered. Closing the directory causes a background request. Together with it, the kernel sends
// other background requests that it has queued.
func Probe(root string) error {
	fd, err := unix.Open(mount.Devices(root), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Flush probes the node when requests stay in the kernel, until ctx is done. The kernel queues
// background requests above max_background. When max_background is raised, the kernel does not send
// the queued requests at once, but only together with the next background request.
func (c *Check) Flush(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if c.stopped.Load() || c.devices.Stats().Stalled < flushInterval {
			continue
		}
		if err := c.answers(ctx, checkTimeout); err != nil && ctx.Err() == nil {
			log.Warn("requests stay in the kernel, and a probe failed", "err", err)
		}
	}
}

// Watchdog is a service manager that restarts a node that does not report in time.
type Watchdog interface {
	// Watchdog returns the longest allowed time between two reports; 0: no reports are expected.
	Watchdog() time.Duration
	// Notify reports lines of sd_notify(3).
	Notify(lines string) error
}

// FeedWatchdog reports to the service manager, until ctx is done, that the node is alive. It does
// not report while Alive fails.
func (c *Check) FeedWatchdog(ctx context.Context, dog Watchdog, log *slog.Logger) {
	interval := dog.Watchdog() / 3
	if interval <= 0 {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := c.Alive(ctx, interval)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Error("watchdog check failed", "err", err)
		} else if err := dog.Notify("WATCHDOG=1"); err != nil {
			log.Warn("cannot notify the service manager", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
