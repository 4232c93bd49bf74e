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

	"lighter/node/mount"
)

// tellManager tells the service manager that the node is ready, how it is, as long
// as it is well, and that it stops.
func (n *Node) tellManager(ctx context.Context) error {
	n.notify(fmt.Sprintf("READY=1\nSTATUS=%d trees served, root %s", len(n.trees.Mounted()), n.config.Root))
	defer n.notify("STOPPING=1\nSTATUS=stopping")
	interval := n.manager.Watchdog() / 2
	if interval <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := n.alive(ctx, interval)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			n.notify("WATCHDOG=1")
		default:
			n.log.Error("the node is not well", "cause", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Node) notify(lines string) {
	if err := n.manager.Notify(lines); err != nil {
		n.log.Warn("the service manager does not hear", "cause", err)
	}
}

// alive fails if the node does not answer the kernel within timeout: whatever else
// works, containers would hang. It asks the kernel, and so goes the whole way, by
// another process: who waits for an answer that nobody will give cannot be killed,
// and a daemon that hangs has to be, for its successor to start.
func (n *Node) alive(ctx context.Context, timeout time.Duration) error {
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
