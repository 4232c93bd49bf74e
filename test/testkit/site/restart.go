package site

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lighter/sleep"
)

// RestartNode kills the node, starts it again, and waits until containerd has reconnected.
func (m *Machine) RestartNode(ctx context.Context) error {
	m.KillNode()
	if err := m.StartNode(ctx); err != nil {
		return err
	}
	return m.Reconnect(ctx)
}

// Reconnect waits until containerd has reconnected to a restarted node.
func (m *Machine) Reconnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := m.reachNode(ctx)
		if err == nil {
			return nil
		}
		if !sleep.For(ctx, 100*time.Millisecond) {
			return fmt.Errorf("wait for containerd to reconnect to the node: %w", err)
		}
	}
}

// reachNode makes a request that containerd passes on to the node.
func (m *Machine) reachNode(ctx context.Context) error {
	listed, err := m.Ctr(ctx, "snapshots", "--snapshotter", Lighter, "ls")
	if err != nil || strings.Count(listed, "\n") > 1 {
		return err
	}
	// Containerd lists no snapshots without the node.
	const key = "reached"
	if _, err := m.Ctr(ctx, "snapshots", "--snapshotter", Lighter, "prepare", key); err != nil {
		return err
	}
	_, err = m.Ctr(ctx, "snapshots", "--snapshotter", Lighter, "rm", key)
	return err
}
