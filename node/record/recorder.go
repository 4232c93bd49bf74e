// Package record promises that what starts read is known: which ranges of a
// tree's device, in which order, from the moment that the tree is mounted until
// the reads die down. It costs a read some tens of nanoseconds, and what goes wrong
// here costs nobody anything but the trace.
//
// A start is that of a container on a tree of which nothing was read since it was
// mounted: nothing of it is in the page cache then, so all that is used of it is
// read. A container that starts later reads only what was not read before; what that
// would tell of it is wrong, so it is not recorded. Nor is one on a tree whose device
// has served former mounts, which others may read yet, and what people or programs
// read that mount a tree to look at it. Whoever wants a start recorded all the same
// (Next) has the tree mounted once more.
//
// The package refuses to know what was started. A trace holds ranges and times
// since the mount, and nothing that says what ran, where or when.
package record

import (
	"context"
	"slices"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

const (
	// maxAtOnce bounds the recordings at a time, of 256 KiB each. Of those that
	// have seen nearly nothing, the oldest gives way.
	maxAtOnce = 16
	// quiet is how long nothing must be read for a start to be over, longest how
	// long it takes at most.
	quiet   = 10 * time.Second
	longest = 2 * time.Minute
	// least is how many bytes a start reads. Less is what containerd, say, looks up
	// before: the start may come yet, for patience after that.
	least    = 64 << 10
	patience = 30 * time.Minute
	// tick is how often it is looked whether a start is over.
	tick = time.Second
)

// Device is what reads are recorded of.
type Device interface {
	// Record has the reads from now on noted; nil ends that.
	Record(*Recording)
}

// Stats are a recorder's figures since it was made.
type Stats struct {
	On       bool  `json:"on"`
	InWork   int   `json:"inWork"`
	Recorded int64 `json:"recorded"` // starts
	Skipped  int64 `json:"skipped"`  // starts that were not, or not to their end: too many at a time, or hardly anything was read
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

// work is one recording in work.
type work struct {
	recording *Recording
	device    Device
	next      *Next // who wants it; nil: done gets it

	seen    int       // reads, when it was last looked
	changed time.Time // when that was more than before
	since   time.Time // when it had begun to be; zero: it is waited for
}

// New makes a recorder that gives what it records to done, which does not wait.
// If it is not on, only what Next asks for is recorded.
func New(on bool, done func(trace.Trace)) *Recorder {
	return &Recorder{on: on, done: done, wishes: map[chunk.ID]*Next{}}
}

// Starts says that a container is about to start on a tree, of which nothing was
// read since it was mounted.
func (r *Recorder) Starts(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on && !slices.ContainsFunc(r.works, func(w *work) bool { return w.recording.tree == tree }) {
		r.begin(tree, device, nil)
	}
}

// Mounted says that a tree was mounted: if somebody wants its next start recorded,
// this is it.
func (r *Recorder) Mounted(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(tree) // the former mount's
	if next := r.wishes[tree]; next != nil {
		r.begin(tree, device, next)
	}
}

func (r *Recorder) begin(tree chunk.ID, device Device, next *Next) {
	if next == nil && len(r.works) >= maxAtOnce && !r.makeRoom() {
		r.stats.Skipped++
		return
	}
	now := time.Now() // nearly always a moment after the mount
	w := &work{recording: newRecording(tree, now), device: device, next: next, changed: now}
	r.works = append(r.works, w)
	if next != nil {
		next.work = w
	}
	device.Record(w.recording)
}

// makeRoom gives up the oldest recording that has seen nearly nothing.
func (r *Recorder) makeRoom() bool {
	i := slices.IndexFunc(r.works, func(w *work) bool { return w.next == nil && w.since.IsZero() })
	if i < 0 {
		return false
	}
	r.finish(r.works[i], false)
	return true
}

// Unmounted says that nobody uses a tree any more: a start that is being recorded
// is over.
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

// finish ends a recording; whole tells whether it is worth something.
func (r *Recorder) finish(w *work, whole bool) {
	w.device.Record(nil)
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

// Run ends the recordings of starts that are over, until ctx is done. What is then
// in work is lost.
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

// look tells whether a recording is over, and worth something.
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

// Stats returns the figures.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.On, s.InWork = r.on, len(r.works)
	return s
}
