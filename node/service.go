package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/fuse"
	"lighter/node/mount"
)

// announce says to all who want to know that the node is ready: its sockets are
// there, and what a former daemon served is served again. withdraw says that it is
// not any more. They are the one place for that.
func (n *Node) announce(ready func()) {
	n.log.Info("node is ready", "root", n.config.Root, "address", n.config.Address, "hubs", n.hubs.URL())
	n.web.ready()
	n.notify(fmt.Sprintf("READY=1\nSTATUS=%d trees served, root %s", len(n.mounts.Mounted()), n.config.Root))
	ready()
}

func (n *Node) withdraw() {
	n.stopping.Store(true)
	n.web.notReady("it stops")
	n.notify("STOPPING=1\nSTATUS=stopping")
}

// feedWatchdog tells the service manager that the node is alive, as long as it is
// and ctx is not done.
func (n *Node) feedWatchdog(ctx context.Context) {
	interval := n.manager.Watchdog() / 3
	if interval <= 0 {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := n.alive(ctx, interval)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.notify("WATCHDOG=1")
		default:
			n.log.Error("the node is not well", "cause", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) notify(lines string) {
	if err := n.manager.Notify(lines); err != nil {
		n.log.Warn("the service manager does not hear", "cause", err)
	}
}

// hungRead is for how long a read can be unanswered at most, if all is well: each
// is answered within 110 s (package device).
const hungRead = 3 * time.Minute

// alive fails if only a restart can help: if the kernel's requests are not
// answered, containers hang, whatever else works. It is what the service manager's
// watchdog and /healthz go by. A node whose hub or disk is gone is alive, as it
// serves what it has; and so is one that stops.
func (n *Node) alive(ctx context.Context, timeout time.Duration) error {
	switch {
	case n.stopping.Load():
		return nil
	case n.unserved.Load():
		return errors.New("the kernel's reads are not answered any more")
	}
	if err := hangs(n.server.Stats().Oldest); err != nil {
		return err
	}
	return n.answers(ctx, timeout)
}

// hangs judges for how long the oldest read has been unanswered.
func hangs(oldest time.Duration) error {
	if oldest > hungRead {
		return fmt.Errorf("a read has been unanswered for %s", oldest.Round(time.Second))
	}
	return nil
}

// stalledReads is for how long requests can wait in the kernel at most while the node reads none,
// if all is well: it reads them within microseconds.
const stalledReads = 10 * time.Second

// stalled judges for how long requests have waited in the kernel while the node read none. The
// watchdog does not go by it: requests that a former daemon lost wait for ever, whoever is started.
func stalled(st fuse.ServerStats) error {
	if st.Stalled > stalledReads {
		return fmt.Errorf("reads wait in the kernel, and the node has read none for %s: the kernel has %d unanswered requests, the node %d reads",
			st.Stalled.Round(time.Second), st.InKernel, st.InWork+st.Waiting)
	}
	return nil
}

// answers fails if the node does not answer the kernel within timeout. It asks the
// kernel, and so goes the whole way (that is no read, and waits for none), by
// another process: who waits for an answer that nobody will give cannot be killed,
// and a daemon that hangs has to be, for its successor to start.
func (n *Node) answers(ctx context.Context, timeout time.Duration) error {
	// One at a time: without an answer it waits until the connection ends.
	answered := n.probe.DoChan("", func() (any, error) {
		said, err := exec.Command("/proc/self/exe", "probe", n.config.Root).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
		}
		return nil, nil
	})
	select {
	case answer := <-answered:
		if answer.Err != nil {
			return fmt.Errorf("ask for the devices: %w", answer.Err)
		}
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("the devices do not answer within %s", timeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Probe asks the kernel for the devices of the node with that root, and returns when
// the node has answered.
func Probe(root string) error {
	var stat unix.Statfs_t
	return unix.Statfs(mount.Devices(root), &stat)
}

// oomScore is how the kernel is told to choose its victims: the node among the
// last, for all containers depend on it. The keeper comes after it.
const oomScore = -999

// last makes this process one of the last that the kernel kills when memory is
// short, unless a service manager has said something already.
func (n *Node) last() {
	const path = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) == "0" {
		err = os.WriteFile(path, []byte(strconv.Itoa(oomScore)), 0)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Info("when memory is short the node may be killed as any other process", "cause", err)
	}
}
