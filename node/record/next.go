package record

import (
	"errors"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// Next is the next start of a tree, which somebody wants recorded.
type Next struct {
	recorder *Recorder
	tree     chunk.ID
	done     chan struct{}
	trace    trace.Trace // once done is closed
	work     *work       // the recorder's mu guards it; nil: the tree is not mounted yet
}

// errAsked says that somebody else wants that already.
var errAsked = errors.New("the next start of this image is being recorded for somebody else already: wait for that, or end it")

// Next has the next start of a tree recorded, whether the recorder is on or not.
// It begins with the tree's next mount. The caller ends it.
func (r *Recorder) Next(tree chunk.ID) (*Next, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wishes[tree] != nil {
		return nil, errAsked
	}
	n := &Next{recorder: r, tree: tree, done: make(chan struct{})}
	r.wishes[tree] = n
	return n, nil
}

// Done is closed when the start is over: Trace has what it read.
func (n *Next) Done() <-chan struct{} { return n.done }

// Trace returns what the start has read, once Done is closed.
func (n *Next) Trace() trace.Trace { return n.trace }

// Seen returns how many reads there were so far.
func (n *Next) Seen() int {
	n.recorder.mu.Lock()
	defer n.recorder.mu.Unlock()
	if n.work == nil {
		return 0
	}
	return n.work.recording.count()
}

// End gives the recording up, if it is not done.
func (n *Next) End() {
	r := n.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wishes[n.tree] != n {
		return
	}
	delete(r.wishes, n.tree)
	if w := n.work; w != nil {
		w.next = nil
		r.finish(w, false)
	}
}
