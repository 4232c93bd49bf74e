package ingest

import (
	"context"
	"errors"
	"slices"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/sleep"
	"lighter/wire"
)

const (
	claimTime = 3 * time.Second // bound of the wait for an owner of an empty layer that makes no progress
	// SplitRate is the compressed bytes a second that one worker splits on two processors: torch,
	// of 3.24 GB, took 52 s (docs/benchmarks.md).
	SplitRate = 60e6
	// slowRate is the compressed bytes a second, on average, that an owner has to read so that a
	// worker goes on waiting. A slower source cannot send 4 GB within limits.image_minutes (its
	// default): a worker that waits for such an owner may fail with it.
	slowRate = 250e3
)

// claimPauses has the pauses between two tries to claim a layer.
var claimPauses = sleep.Backoff{First: 250 * time.Millisecond, Most: time.Second}

// longestWait bounds the wait for an owner that makes no progress with a layer of that many
// compressed bytes. It is about as long as it would take to split the layer.
func longestWait(size int64) time.Duration {
	return claimTime + time.Duration(float64(size)/SplitRate*float64(time.Second))
}

// wait is a worker's wait for the owner of a layer: another worker, of this process or another one,
// that has claimed the layer. The owner releases the layer when its image is ready.
//
// The owner may read from a slow source, hang, have many other layers, or wait for this worker. So
// the wait has a bound. It depends on how fast this worker could read the layer itself:
//   - longestWait, if the hub's own registry stores the layer. The speed of other registries does
//     not matter then.
//   - Otherwise the other registry is the bottleneck. The worker waits while the owner reads layers
//     that both of their images have, at slowRate or faster. Then it waits for as long again, and
//     for longestWait, so that the owner can complete its image.
//
// After that the worker splits the layer, too, and some chunks are stored twice until a collection.
//
// A waiting worker holds nothing that the owner needs, except claims of layers. All workers claim
// layers in the same order. If workers wait in a circle all the same, because one of them still has
// the claims of an image that has failed, none of them makes progress, and the waits end.
type wait struct {
	layer oci.Layer

	owner      catalog.Lease // the other worker's; zero before the first look
	stored     bool          // whether the hub's own registry stores the layer
	begun      time.Time
	before     int64         // bytes of common layers that the owner had read when the wait began
	read       int64         // the same at the last look
	progressed time.Duration // of the wait, until the last look at which the owner had made progress
}

// isOver looks at the owner, and reports whether the worker has waited long enough.
func (w *wait) isOver(ctx context.Context, t *ingestion) (over bool, err error) {
	owner, err := t.catalog.Jobs.LayerOwner(ctx, w.layer.DiffID)
	if errors.Is(err, catalog.ErrNotFound) { // it has ended since the last try to claim the layer
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if w.owner == (catalog.Lease{}) {
		if w.stored, err = t.source.Stores(ctx, w.layer.Digest); err != nil {
			return false, err
		}
	}
	lines, err := jobs.Lines(owner)
	if err != nil {
		return false, err
	}
	return w.look(time.Now(), owner.Lease(), bytesOf(t.image.Layers, lines)), nil
}

// look reports whether the wait is over when the owner has read that many bytes of common layers.
// The wait begins again with each new owner.
func (w *wait) look(now time.Time, owner catalog.Lease, read int64) (over bool) {
	if w.owner != owner {
		w.owner, w.begun, w.before, w.read, w.progressed = owner, now, read, read, 0
	}
	waited := now.Sub(w.begun)
	if !w.stored && read > w.read && float64(read-w.before) >= slowRate*waited.Seconds() {
		w.progressed = waited
	}
	w.read = read
	return waited > 2*w.progressed+longestWait(w.layer.Size)
}

// bytesOf returns the number of bytes of the layers that a job has read, by its progress.
func bytesOf(layers []oci.Layer, progress []wire.Progress) (bytes int64) {
	for _, line := range progress {
		if line.Step == LayerStep && slices.ContainsFunc(layers, func(l oci.Layer) bool {
			return wire.ShortDigest(l.Digest) == line.Item
		}) {
			bytes += line.Bytes
		}
	}
	return bytes
}
