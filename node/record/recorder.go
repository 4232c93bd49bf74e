// Package record records which ranges of a tree's device a container start reads, and in which
// order. A recording begins just before the start (BeginStart). It ends when nothing was read for
// 10 s, or two minutes after the first read; constants.go has the exceptions. It also ends after
// trace.MaxReads reads, and when the tree is unmounted or mounted again. The result is a trace. The
// package reports it to a hub, which makes startup packs for later starts from it. Recording adds
// some tens of nanoseconds to a read. If it fails, only the trace is lost.
//
// It records only the first container on a fresh mount. The page cache then has nothing of the
// tree, so the container reads everything that it uses through the device. A later container reads
// only data that is not in memory yet, so its trace would lack data. A start on a device that has
// served earlier mounts is not recorded for the same reason. An administrative mount, of
// `lighter mount`, is not a container start. RecordNext can record a later start: the recording
// begins when the caller mounts the tree once more.
//
// A trace has ranges, and times since the recording began. It does not say what ran, where or when.
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

// Device is a device whose reads can be recorded.
type Device interface {
	// Observe makes the device report its reads to o until stop is called.
	Observe(o device.Observer) (stop func())
}

// Stats are a recorder's figures since it was made.
type Stats struct {
	On       bool  `json:"on"`
	Active   int   `json:"inWork"`   // recordings in progress
	Recorded int64 `json:"recorded"` // recordings with enough reads for a trace
	Skipped  int64 `json:"skipped"`  // recordings refused, replaced, cancelled, or too short
}

// Recorder records starts. It is safe for concurrent use.
type Recorder struct {
	on   bool
	done func(trace.Trace)

	mu       sync.Mutex // guards what follows
	active   []*active  // the oldest first
	requests map[chunk.ID]*Request
	stats    Stats
}

// active is a recording in progress.
type active struct {
	log  *readLog
	stop func()   // ends the device's reports to log
	next *Request // receives the trace; nil: Recorder.done receives it

	reads    int       // number of reads at the last check
	lastRead time.Time // time of the last check that found new reads
	began    time.Time // when the reads of the start began; zero: they have not begun
}

// New returns a recorder that passes traces to done, which must not block. If on is false, it
// records only the starts that RecordNext requests.
func New(on bool, done func(trace.Trace)) *Recorder {
	return &Recorder{on: on, done: done, requests: map[chunk.ID]*Request{}}
}

// BeginStart begins a recording, unless the recorder is off or a recording of the tree is in
// progress. If there are maxAtOnce others, the recording replaces one (makeRoom) or does not begin.
// It is called when a container is about to start from a tree, and nothing of the tree was read
// since its mount.
func (r *Recorder) BeginStart(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on && !slices.ContainsFunc(r.active, func(a *active) bool { return a.log.tree == tree }) {
		r.begin(tree, device, nil)
	}
}

// Mounted is called when a tree is mounted. It begins the recording that RecordNext has requested.
func (r *Recorder) Mounted(tree chunk.ID, device Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(tree) // ends the recording of the previous mount
	if next := r.requests[tree]; next != nil {
		r.begin(tree, device, next)
	}
}

func (r *Recorder) begin(tree chunk.ID, device Device, next *Request) {
	if next == nil && len(r.active) >= maxAtOnce && !r.makeRoom() {
		r.stats.Skipped++
		return
	}
	now := time.Now()
	log := newReadLog(tree, now)
	a := &active{log: log, stop: device.Observe(log), next: next, lastRead: now}
	r.active = append(r.active, a)
	if next != nil {
		next.active = a
	}
}

// makeRoom ends the oldest recording whose start has not begun and that RecordNext did not request.
// It reports whether there was such a recording.
func (r *Recorder) makeRoom() bool {
	i := slices.IndexFunc(r.active, func(a *active) bool { return a.next == nil && a.began.IsZero() })
	if i < 0 {
		return false
	}
	r.finish(r.active[i], false)
	return true
}

// Unmounted is called when a tree is no longer mounted. It ends the tree's recording.
func (r *Recorder) Unmounted(tree chunk.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(tree)
}

func (r *Recorder) end(tree chunk.ID) {
	for _, a := range slices.Clone(r.active) {
		if a.log.tree == tree {
			r.finish(a, a.log.bytes() >= minBytes)
		}
	}
}

// finish ends a recording. enough says whether it has enough reads for a trace. A request gets its
// trace in any case.
func (r *Recorder) finish(a *active, enough bool) {
	a.stop()
	r.active = slices.DeleteFunc(r.active, func(other *active) bool { return other == a })
	if !enough {
		r.stats.Skipped++
	} else {
		r.stats.Recorded++
	}
	switch {
	case a.next != nil:
		delete(r.requests, a.log.tree)
		a.next.trace = a.log.trace()
		close(a.next.done)
	case enough:
		r.done(a.log.trace())
	}
}

// Run ends recordings when their starts are over, until ctx is done. Recordings that are in
// progress at that time are lost.
func (r *Recorder) Run(ctx context.Context) {
	ticks := time.NewTicker(checkInterval)
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			r.check(now)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Recorder) check(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range slices.Clone(r.active) {
		if over, enough := a.check(now); over {
			r.finish(a, enough)
		}
	}
}

// check reports whether a recording is over, and whether it has enough reads for a trace.
func (a *active) check(now time.Time) (over, enough bool) {
	if n := a.log.count(); n != a.reads {
		a.reads, a.lastRead = n, now
		if a.began.IsZero() {
			a.began = now
		}
	}
	switch {
	case a.reads == trace.MaxReads:
		return true, true
	case now.Sub(a.lastRead) < idleTime:
		over = !a.began.IsZero() && now.Sub(a.began) >= maxTime
		return over, over
	case a.reads > 0 && (a.next != nil || a.log.bytes() >= minBytes):
		return true, true
	}
	a.began = time.Time{}
	return a.next == nil && now.Sub(a.lastRead) >= startTimeout, false
}

// Stats returns the recorder's figures.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.On, s.Active = r.on, len(r.active)
	return s
}
