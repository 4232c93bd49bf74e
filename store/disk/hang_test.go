package disk

import (
	"sync/atomic"
	"testing"
	"time"
)

// Operations that are left count until they end, and no more of them begin than may.
func TestGuard(t *testing.T) {
	g := newGuard(2, time.Millisecond)
	var also, begun atomic.Int64
	answer := make(chan struct{})
	for range 3 {
		err := g.do(func() {
			begun.Add(1)
			<-answer
		}, &also)
		if err != errHangs {
			t.Errorf("an operation without an answer: %v", err)
		}
	}
	if g.left.Load() != 2 || also.Load() != 2 || g.hangsSince(2).IsZero() || !g.hangsSince(3).IsZero() {
		t.Errorf("%d are left, %d of them here, since %v", g.left.Load(), also.Load(), g.hangsSince(1))
	}
	close(answer)
	eventually(t, "all have ended", func() bool { return g.left.Load() == 0 && also.Load() == 0 && len(g.slots) == 0 })
	if begun.Load() != 2 {
		t.Errorf("%d have begun", begun.Load())
	}
	g.patience = time.Minute
	done := false
	if err := g.do(func() { done = true }, &also); err != nil || !done || g.left.Load() != 0 {
		t.Errorf("an operation with an answer: %v", err)
	}
}
