package startup

import (
	"maps"
	"sync"
	"time"

	"lighter/format/chunk"
)

// After a layout, new traces make the tree due only when restFactor times the layout's duration has
// passed. So nodes can make the hub spend at most a fifth of its time on one tree.
const restFactor = 4

// schedule says when layouts are made, and which one is being made. It is safe for concurrent use.
type schedule struct {
	timing *Timing
	wake   chan struct{} // has an element if a layout may be due

	mu      sync.Mutex             // guards the following
	rests   map[chunk.ID]time.Time // earliest times of trees' next layouts
	done    chan struct{}          // closed after each attempt to make a layout
	current chunk.ID               // tree whose layout is being made, or zero
}

func newSchedule(timing *Timing) *schedule {
	return &schedule{timing: timing, wake: make(chan struct{}, 1), rests: map[chunk.ID]time.Time{},
		done: make(chan struct{})}
}

// wakeUp makes the maker look for due layouts.
func (s *schedule) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// dueAt returns when a tree with a new trace is due.
func (s *schedule) dueAt(tree chunk.ID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(s.timing.MergeDelay)
	if until := s.rests[tree]; until.After(at) {
		return until
	}
	return at
}

// rest delays the next layout of a tree. took is how long the tree's layout has taken.
func (s *schedule) rest(tree chunk.ID, took time.Duration) {
	if s.timing.MergeDelay == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.rests, func(_ chunk.ID, until time.Time) bool { return until.Before(time.Now()) })
	s.rests[tree] = time.Now().Add(restFactor * took)
}

// begin begins an attempt to make a tree's layout. The caller calls end, which wakes waiting
// callers.
func (s *schedule) begin(tree chunk.ID) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = tree
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.done)
		s.done, s.current = make(chan struct{}), chunk.ID{}
	}
}

// attempt returns a channel that is closed when the current attempt ends, or the next one if there
// is none.
func (s *schedule) attempt() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// currentTree returns the tree whose layout is being made, or zero.
func (s *schedule) currentTree() chunk.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}
