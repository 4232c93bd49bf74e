package record

import (
	"errors"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// Request is a request to record the next start of a tree.
type Request struct {
	recorder *Recorder
	tree     chunk.ID
	done     chan struct{}
	trace    trace.Trace // valid once done is closed

	active *active // guarded by the recorder's mu; nil: the tree is not mounted yet
}

// errRequested says that another caller has requested a recording of the same tree.
var errRequested = errors.New("the next start of this image is already being recorded: " +
	"wait for that recording, or end it")

// RecordNext records the next start from a tree, even if the recorder is off. The recording begins
// with the tree's next mount. The caller must call End.
func (r *Recorder) RecordNext(tree chunk.ID) (*Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests[tree] != nil {
		return nil, errRequested
	}
	q := &Request{recorder: r, tree: tree, done: make(chan struct{})}
	r.requests[tree] = q
	return q, nil
}

// Done returns a channel that is closed when the start is over, or when its tree was unmounted.
func (q *Request) Done() <-chan struct{} { return q.done }

// Trace returns the trace of the start. It is valid once Done is closed. It is empty if the tree
// was unmounted before anything was read.
func (q *Request) Trace() trace.Trace { return q.trace }

// Seen returns the number of reads so far.
func (q *Request) Seen() int {
	q.recorder.mu.Lock()
	defer q.recorder.mu.Unlock()
	if q.active == nil {
		return 0
	}
	return q.active.log.count()
}

// End cancels the recording if it is not done.
func (q *Request) End() {
	r := q.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests[q.tree] != q {
		return
	}
	delete(r.requests, q.tree)
	if a := q.active; a != nil {
		a.next = nil
		r.finish(a, false)
	}
}
