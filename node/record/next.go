package record

import (
	"errors"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// Next is a request to record the next start of a tree.
type Next struct {
	recorder *Recorder
	tree     chunk.ID
	done     chan struct{}
	trace    trace.Trace // valid once done is closed

	recording *active // guarded by the recorder's mu; nil: the tree is not mounted yet
}

// errRequested means that another caller has requested the same recording.
var errRequested = errors.New("the next start of this image is already being recorded: " +
	"wait for that recording, or end it")

// Next records the next start of a tree, whether the recorder is on or not. The recording begins
// with the tree's next mount. The caller must call End.
func (r *Recorder) Next(tree chunk.ID) (*Next, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests[tree] != nil {
		return nil, errRequested
	}
	n := &Next{recorder: r, tree: tree, done: make(chan struct{})}
	r.requests[tree] = n
	return n, nil
}

// Done returns a channel that is closed when the start is over.
func (n *Next) Done() <-chan struct{} { return n.done }

// Trace returns the trace of the start. It is valid once Done is closed.
func (n *Next) Trace() trace.Trace { return n.trace }

// Seen returns the number of reads so far.
func (n *Next) Seen() int {
	n.recorder.mu.Lock()
	defer n.recorder.mu.Unlock()
	if n.recording == nil {
		return 0
	}
	return n.recording.recording.count()
}

// End cancels the recording if it is not done.
func (n *Next) End() {
	r := n.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests[n.tree] != n {
		return
	}
	delete(r.requests, n.tree)
	if a := n.recording; a != nil {
		a.next = nil
		r.finish(a, false)
	}
}
