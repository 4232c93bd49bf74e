// Package ondemand records the next start of an image on request (`lighter trace record`), even if
// the node does not record starts by itself. The trace is sent to a hub, or returned as text.
package ondemand

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/record"
)

// Progress is the progress of a recording.
type Progress struct {
	Tree  chunk.ID `json:"tree"`
	Reads int      `json:"reads"`           // number of reads so far; at the end, number of ranges in the trace
	Bytes int64    `json:"bytes,omitempty"` // at the end: number of bytes of the device that were read
	Over  bool     `json:"over"`            // the start has ended
	Sent  bool     `json:"sent"`            // the trace was sent to a hub
	Text  string   `json:"text,omitempty"`  // at the end, if it was requested: the trace as text (package trace)
}

// interval is the time between two reports of progress.
const interval = 500 * time.Millisecond

// errNoStart says that nothing was recorded.
var errNoStart = errors.New("the image's tree was unmounted before anything was read: was the image removed?")

// errNoHub says that a trace cannot be sent.
var errNoHub = errors.New("this node has no hub to send the trace to: write it to a file with --output, for " +
	"`lighter attach` and `lighter export`")

// Finder finds the tree of an image by what a user calls it: a reference, chainID or tree ID, or a
// part of one.
type Finder interface {
	// FindTree returns the tree of the image that word names, and the image's reference, or word if
	// the image has none.
	FindTree(ctx context.Context, word string) (tree chunk.ID, label string, err error)
}

// Mounts mounts a tree once more, so that none of its data is in memory for the next start.
type Mounts interface {
	// MountAgain mounts a mounted tree over its existing mount. Until Unwatch is called, new mounts
	// of the tree do not read the local device, whose reads cannot be recorded.
	MountAgain(ctx context.Context, tree chunk.ID) error
	Unwatch(tree chunk.ID)
}

// Files translates a trace into ranges of files.
type Files interface {
	Files(ctx context.Context, of trace.Trace) (trace.Recording, error)
}

// Recorder records starts on demand.
type Recorder struct {
	Starts *record.Recorder
	Images Finder
	Mounts Mounts
	Files  Files
	Send   func(ctx context.Context, t trace.Trace) error // sends a trace to a hub; nil: there is none
}

// Record records the next start of an image and reports its progress. Then it sends the trace to a
// hub. If text is true, the trace is not sent: the last report has it as text.
func (r *Recorder) Record(ctx context.Context, image string, text bool, report func(Progress)) error {
	if !text && r.Send == nil {
		return errNoHub
	}
	tree, _, err := r.Images.FindTree(ctx, image)
	if err != nil {
		return err
	}
	t, err := r.recordTree(ctx, tree, report)
	if err != nil {
		return fmt.Errorf("record %s: %w", image, err)
	}
	end := Progress{Tree: tree, Reads: len(t.Reads), Over: true}
	for _, read := range t.Reads {
		end.Bytes += read.Length
	}
	if text {
		files, err := r.Files.Files(ctx, t)
		if err != nil {
			return fmt.Errorf("find the files that the start of %s has read: %w", image, err)
		}
		end.Text = string(trace.EncodeText([]trace.Recording{files}))
	} else {
		if err := r.Send(ctx, t); err != nil {
			return fmt.Errorf("send the trace of %s to a hub: %w "+
				"(with --output it is written to a file, for `lighter trace import`)", image, err)
		}
		end.Sent = true
	}
	report(end)
	return nil
}

// recordTree returns the trace of the next start from a tree. The trace is not empty.
func (r *Recorder) recordTree(ctx context.Context, tree chunk.ID, report func(Progress)) (trace.Trace, error) {
	next, err := r.Starts.RecordNext(tree)
	if err != nil {
		return trace.Trace{}, err
	}
	defer next.End()
	defer r.Mounts.Unwatch(tree)
	if err := r.Mounts.MountAgain(ctx, tree); err != nil {
		return trace.Trace{}, err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for over := false; !over; {
		report(Progress{Tree: tree, Reads: next.Seen()})
		select {
		case <-next.Done():
			over = true
		case <-tick.C:
		case <-ctx.Done():
			return trace.Trace{}, context.Cause(ctx)
		}
	}
	if len(next.Trace().Reads) == 0 {
		return trace.Trace{}, errNoStart
	}
	return next.Trace(), nil
}
