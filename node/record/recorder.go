// Package record records which ranges of a tree's device a container start reads, and in which
// order, from the mount until the reads die down. It costs a read some tens of nanoseconds. A
// failure here costs the trace, and nothing else.
//
// It records the first container on a fresh mount only. The page cache then has nothing of the tree,
// so everything that the container uses is read. A later container reads only what is not in memory
// yet, and such a trace would be wrong. The same holds for a device that served earlier mounts, and
// for administrative mounts. Next records a start all the same: it has the tree mounted once more.
//
// A trace has ranges and times since the mount. It does not say what ran, where or when.
package record

import (
	"context"
	"slices"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/device"
)

const (
	// maxAtOnce bounds concurrent recordings, of 256 KiB each. A new one replaces the oldest that
	// has seen nearly nothing.
	maxAtOnce = 16
	// A start ends when nothing is read for quiet, and after longest at the latest.
	quiet   = 10 * time.Second
	longest = 2 * time.Minute
	// A start reads at least least bytes. containerd, for example, reads less when it looks up a
	// user before the start. The recording then waits for patience.
	least    = 64 << 10
	patience = 30 * time.Minute
	// tick is the interval at which recordings are checked for their end.
	tick = time.Second
)

// Device is a device whose reads can be recorded.
type Device interface {
	// Observe makes the device report its reads to o until stop is called.
	Observe(o device.Observer) (stop func())
}

// Stats are a recorder's figures since it was made.
type Stats struct {
	On       bool  `json:"on"`
	InWork   int   `json:"inWork"`
	Recorded int64 `json:"recorded"` // starts
	Skipped  int64 `json:"skipped"`  // starts not recorded to their end: too many at a time, or too few bytes
}

// Recorder records starts. It is safe for concurrent use.
type Recorder struct {
	on   bool
	done func(trace.Trace)

	mu     sync.Mutex // guards what follows
	works  []*work    // the oldest first
	wishes map[chunk.ID]*Next
	stats  Stats
}

// work is a recording in progress.
type work struct {
	recording *Recording
	stop      func() // detaches the recording from the device
	next      *Next  // receives the trace; nil: done does

	seen    int       // reads at the last check
	changed time.Time // the last check that found more of them
	since   time.Time // when reads began; zero: the start has not begun
}

// New returns a recorder that passes traces to done, which must not block. If on is false, only
// starts requested by Next are recorded.
func New(on bool, done func(trace.Trace)) *Recorder {
	return &Recorder{on: on, done: done, wishes: map[chunk.ID]*Next{}}
}

// Starts begins a recording: a container is about to start on a tree of which nothing was read since
// it was mounted.
func (r *Recorder) Starts(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on && !slices.ContainsFunc(r.works, func(w *work) bool { return w.recording.tree == tree }) {
		r.begin(tree, device, nil)
	}
}

// Mounted reports that a tree was mounted. It begins the recording that Next requested.
func (r *Recorder) Mounted(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(tree) // of the previous mount
	if next := r.wishes[tree]; next != nil {
		r.begin(tree, device, next)
	}
}

func (r *Recorder) begin(tree chunk.ID, device Device, next *Next) {
	if next == nil && len(r.works) >= maxAtOnce && !r.makeRoom() {
		r.stats.Skipped++
		return
	}
	now := time.Now() // a moment after the mount
	recording := newRecording(tree, now)
	w := &work{recording: recording, stop: device.Observe(recording), next: next, changed: now}
	r.works = append(r.works, w)
	if next != nil {
		next.work = w
	}
}

// makeRoom ends the oldest recording that has seen nearly nothing.
func (r *Recorder) makeRoom() bool {
	i := slices.IndexFunc(r.works, func(w *work) bool { return w.next == nil && w.since.IsZero() })
	if i < 0 {
		return false
	}
	r.finish(r.works[i], false)
	return true
}

// Unmounted ends the recording of a tree that is no longer used.
func (r *Recorder) Unmounted(tree chunk.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(tree)
}

func (r *Recorder) end(tree chunk.ID) {
	for _, w := range slices.Clone(r.works) {
		if w.recording.tree == tree {
			r.finish(w, w.recording.bytes() >= least)
		}
	}
}

// finish ends a recording. whole says whether it has a complete start.
func (r *Recorder) finish(w *work, whole bool) {
	w.stop()
	r.works = slices.DeleteFunc(r.works, func(other *work) bool { return other == w })
	if !whole {
		r.stats.Skipped++
	} else {
		r.stats.Recorded++
	}
	switch {
	case w.next != nil:
		delete(r.wishes, w.recording.tree)
		w.next.trace = w.recording.trace()
		close(w.next.done)
	case whole:
		r.done(w.recording.trace())
	}
}

// Run ends recordings when their starts are over, until ctx is done. Recordings in progress are then
// lost.
func (r *Recorder) Run(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			r.look(now)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Recorder) look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range slices.Clone(r.works) {
		if over, whole := w.look(now); over {
			r.finish(w, whole)
		}
	}
}

// look reports whether a recording is over, and whether it has a complete start.
func (w *work) look(now time.Time) (over, whole bool) {
	if n := w.recording.count(); n != w.seen {
		w.seen, w.changed = n, now
		if w.since.IsZero() {
			w.since = now
		}
	}
	switch {
	case w.seen == trace.MaxReads:
		return true, true
	case now.Sub(w.changed) < quiet:
		over = !w.since.IsZero() && now.Sub(w.since) >= longest
		return over, over
	case w.seen > 0 && (w.next != nil || w.recording.bytes() >= least):
		return true, true
	}
	w.since = time.Time{}
	return w.next == nil && now.Sub(w.changed) >= patience, false
}

// Stats returns the recorder's figures.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.On, s.InWork = r.on, len(r.works)
	return s
}
