package site

import (
	"context"
	"fmt"
	"time"
)

// RestartNode kills the node, starts it again, and waits for containerd to have
// noticed.
func (m *Machine) RestartNode(ctx context.Context) error {
	m.KillNode()
	if err := m.StartNode(ctx); err != nil {
		return err
	}
	return m.Reconnect(ctx)
}

// Reconnect waits until containerd has found a node that was started again: it
// dials again after a pause.
func (m *Machine) Reconnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := m.Ctr(ctx, "snapshots", "--snapshotter", Lighter, "ls")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("containerd does not find the node again: %w", err)
		}
	}
}
