package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/record"
	"lighter/wire/client"
)

// RecordingStatus is what a node says of the starts that it records.
type RecordingStatus struct {
	record.Stats
	record.ReportStats
}

// TraceRecorded says how far the recording of a start is.
type TraceRecorded struct {
	Tree  chunk.ID `json:"tree"`
	Reads int      `json:"reads"`           // so far; of whole starts, those that do not go on where the one before ended
	Bytes int64    `json:"bytes,omitempty"` // of the device, once it is over
	Over  bool     `json:"over"`            // the start
	Sent  bool     `json:"sent"`            // to a hub
	Text  string   `json:"text,omitempty"`  // as package trace has it, if that was asked for
	Error string   `json:"error,omitempty"` // it has ended, and why
}

// newRecorder makes what records starts, and reports them.
func (n *Node) newRecorder() {
	spread := time.Duration(n.config.RecordDelay)
	if n.hubs.HasLoopback() { // that has no other nodes, or few
		spread = 0
	}
	n.reporter = record.NewReporter(n.sendTrace, n.linkIsWanted, spread, n.log)
	n.recorder = record.New(n.config.Record, n.reporter.Add)
}

func (n *Node) sendTrace(ctx context.Context, t trace.Trace) error {
	err := n.hubs.SendTrace(ctx, t.Tree, t)
	var said *client.Error
	if errors.As(err, &said) && said.IsRefusal() {
		err = fmt.Errorf("%w: %w", record.ErrRefused, err)
	}
	return err
}

// linkIsWanted tells whether somebody waits for a hub's bytes.
func (n *Node) linkIsWanted() bool {
	now := n.units.Stats().InFlight
	return now.Urgent+now.UrgentWaiting > 0
}

func (n *Node) recordingStatus() RecordingStatus {
	return RecordingStatus{n.recorder.Stats(), n.reporter.Stats()}
}

// recordTold is the time between two reports of recordNext.
const recordTold = 500 * time.Millisecond

// recordNext has the next start of an image recorded, tells how far that is, and
// sends it to a hub, or returns it as text.
func (n *Node) recordNext(ctx context.Context, name string, asText bool, tell func(TraceRecorded)) error {
	tree, _, err := n.findTree(ctx, name)
	if err != nil {
		return err
	}
	next, err := n.recorder.Next(tree)
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	defer next.End()
	defer n.mounts.Unwatch(tree)
	if err := n.mounts.MountAgain(ctx, tree); err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	tick := time.NewTicker(recordTold)
	defer tick.Stop()
	for over := false; !over; {
		tell(TraceRecorded{Tree: tree, Reads: next.Seen()})
		select {
		case <-next.Done():
			over = true
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	t := next.Trace()
	said := TraceRecorded{Tree: tree, Reads: len(t.Reads), Over: true}
	for _, r := range t.Reads {
		said.Bytes += r.Length
	}
	if len(t.Reads) == 0 {
		return fmt.Errorf("record %s: %w", name, errNoStart)
	}
	if asText {
		if said.Text, err = n.traceText(ctx, t); err != nil {
			return fmt.Errorf("say which files %s has read: %w", name, err)
		}
	} else if err := n.sendTrace(ctx, t); err != nil {
		return fmt.Errorf("send the trace of %s to a hub: %w (with --output it is written to a file, for `lighter trace import`)", name, err)
	} else {
		said.Sent = true
	}
	tell(said)
	return nil
}

// errNoStart says that there was nothing to record.
var errNoStart = errors.New("its tree went before anything was read of it: was the image removed?")

// traceText returns a trace as people pass it on.
func (n *Node) traceText(ctx context.Context, t trace.Trace) (string, error) {
	r, err := n.trees.Files(ctx, t)
	if err != nil {
		return "", err
	}
	return string(trace.EncodeText([]trace.Recording{r})), nil
}
