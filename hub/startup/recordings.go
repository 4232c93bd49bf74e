package startup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lighter/format/chunk"
	"lighter/format/plan"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// recordings reads and changes the recordings and the waiting traces of trees in the catalog. It is
// safe for concurrent use.
type recordings struct {
	catalog *catalog.Catalog
	senders *senders
	log     *slog.Logger
}

// add stores a trace, to be merged when the tree's layout is made. The error is
// report.ErrSenderFull if the sender has sent enough, and catalog.ErrFull if too many traces wait
// to be merged.
func (r *recordings) add(ctx context.Context, tree chunk.ID, sender string, t trace.Trace, delay time.Duration) error {
	if !r.senders.count(r.from(sender, tree), 1, 0, time.Now()) {
		return fmt.Errorf("add trace of tree %s from %s: %w", tree.Short(), sender, report.ErrSenderFull)
	}
	return r.catalog.Starts.AddTrace(ctx, tree, sender, compressText(t.Encode()), delay)
}

// load returns the recordings of a tree, and body, their encoded form in the catalog. It returns no
// recordings if body cannot be read.
func (r *recordings) load(ctx context.Context, tree chunk.ID) (kept []trace.Recording, body []byte, err error) {
	body, err = r.catalog.Starts.Recordings(ctx, tree)
	if err != nil || body == nil {
		return nil, nil, err
	}
	plain, err := decompressText(body)
	if err == nil {
		kept, err = trace.ParseText(plain)
	}
	if err != nil {
		r.log.Warn("cannot read recordings: they count as none", "tree", tree.Short(), "err", err)
	}
	return kept, body, nil
}

// merge merges the waiting traces into the recordings of a tree, and returns the recordings.
func (r *recordings) merge(ctx context.Context, t *openTree) (kept []trace.Recording, err error) {
	for range maxConflicts {
		if kept, err = r.mergeOnce(ctx, t); !errors.Is(err, catalog.ErrChanged) {
			break
		}
	}
	return kept, err
}

func (r *recordings) mergeOnce(ctx context.Context, t *openTree) ([]trace.Recording, error) {
	kept, before, err := r.load(ctx, t.ID())
	if err != nil {
		return nil, err
	}
	traces, err := r.catalog.Starts.Traces(ctx, t.ID())
	if err != nil || len(traces) == 0 {
		return kept, err
	}
	sorted := plan.Sort(kept)
	for _, stored := range traces {
		more, err := decodeTrace(ctx, t, stored)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // it is dropped with the merged ones
			r.log.Warn("cannot read a trace: it is dropped", "tree", t.ID().Short(), "err", err)
		}
		if !stored.Raw || r.allowNew(t.ID(), stored.Sender, sorted, more) {
			sorted.Add(more)
		}
	}
	kept = sorted.Recordings()
	last := traces[len(traces)-1].N
	return kept, r.catalog.Starts.KeepRecordings(ctx, t.ID(), before, compressText(trace.EncodeText(kept)), last)
}

// allowNew reports whether a sender's recordings, more, are to be kept. Each sender may begin only
// a limited number of workloads.
func (r *recordings) allowNew(tree chunk.ID, sender string, kept *plan.Kept, more []trace.Recording) bool {
	if sender == "" || len(more) == 0 || !kept.IsNew(more[0]) ||
		r.senders.count(r.from(sender, tree), 0, 1, time.Now()) {
		return true
	}
	r.log.Debug("trace dropped: its sender has added enough workloads", "tree", tree.Short(), "sender", sender)
	return false
}

// decodeTrace returns the recordings of a stored trace.
func decodeTrace(ctx context.Context, t *openTree, stored catalog.Trace) ([]trace.Recording, error) {
	plain, err := decompressText(stored.Body)
	if err != nil {
		return nil, err
	}
	if !stored.Raw { // imported, perhaps from another image
		all, err := trace.ParseText(plain)
		if err != nil {
			return nil, err
		}
		return t.Known(ctx, all)
	}
	tr, err := trace.Decode(plain, t.ID(), t.DeviceSize)
	if err != nil {
		return nil, err
	}
	recording, err := t.Recording(ctx, tr)
	return []trace.Recording{recording}, err
}

// forget does the work of Service.Forget.
func (r *recordings) forget(ctx context.Context, tree chunk.ID, workload string) (f wire.Forgotten, err error) {
	for range maxConflicts {
		if f, err = r.forgetOnce(ctx, tree, workload); !errors.Is(err, catalog.ErrChanged) {
			break
		}
	}
	if errors.Is(err, catalog.ErrChanged) {
		err = report.ErrBusy
	}
	if err == nil && workload == "" { // otherwise the limits would refuse new traces
		r.senders.forget(r, tree)
	}
	return f, err
}

func (r *recordings) forgetOnce(ctx context.Context, tree chunk.ID, workload string) (f wire.Forgotten, err error) {
	kept, before, err := r.load(ctx, tree)
	if err != nil {
		return f, err
	}
	left, removed := plan.Without(kept, workload)
	f.Workloads = []string{}
	for _, w := range removed {
		f.Workloads = append(f.Workloads, w.ID())
		f.Starts += w.Starts
	}
	switch {
	case workload == "":
	case len(removed) == 0:
		return f, fmt.Errorf("workload %s: %w", workload, catalog.ErrNotFound)
	case len(removed) > 1:
		return f, fmt.Errorf("%w: workload %s is ambiguous: %d IDs begin with it", report.ErrInvalid, workload,
			len(removed))
	}
	rest := compressText(trace.EncodeText(left))
	f.Waiting, err = r.catalog.Starts.CutRecordings(ctx, tree, before, rest, workload == "")
	return f, err
}
