package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/format/trace"
	"lighter/node/record"
	"lighter/wire/client"
)

// openRecorder opens the recorder of starts, and the reporter that sends their traces to the hubs.
func (n *Node) openRecorder() {
	spread := time.Duration(n.config.RecordDelay)
	if n.hubs.HasLoopback() { // a hub on this machine has few nodes, and needs no delay
		spread = 0
	}
	n.traces = record.NewReporter(n.sendTrace, n.isFetching, spread, n.log)
	n.recorder = record.New(n.config.Record, n.addTrace)
}

// addTrace reports a start, unless it is that of a direct image, which no hub knows.
func (n *Node) addTrace(t trace.Trace) {
	if !n.direct.Has(t.Tree) {
		n.traces.Add(t)
	}
}

// sendTrace sends a trace to a hub. If the hub refuses the trace, the error wraps
// record.ErrRefused.
func (n *Node) sendTrace(ctx context.Context, t trace.Trace) error {
	err := n.hubs.SendTrace(ctx, t.Tree, t)
	var failed *client.Error
	if errors.As(err, &failed) && failed.IsRefusal() {
		err = fmt.Errorf("%w: %w", record.ErrRefused, err)
	}
	return err
}

// isFetching reports whether a reader waits for bytes of a hub.
func (n *Node) isFetching() bool {
	now := n.units.Stats().InFlight
	return now.Urgent+now.UrgentWaiting > 0
}
