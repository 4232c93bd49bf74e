package fuse

import (
	"testing"
	"time"
)

func TestStall(t *testing.T) {
	begin := time.Now()
	var s stall
	for i, step := range []struct {
		received int64
		unread   bool
		stalled  time.Duration // duration of the stall, plus a second; 0: there is no stall
	}{
		{0, false, 0},
		{5, true, 0}, // the server reads
		{9, true, 0},
		{9, true, 1 * time.Second},
		{9, true, 2 * time.Second},
		{10, true, 0},
		{10, true, 1 * time.Second},
		{10, false, 0},
		{10, false, 0},
	} {
		now := begin.Add(time.Duration(i) * time.Second)
		s.check(now, step.received, step.unread)
		var stalled time.Duration
		if !s.since.IsZero() {
			stalled = now.Sub(s.since) + time.Second
		}
		if stalled != step.stalled {
			t.Errorf("step %d: stalled for %v, want %v", i, stalled, step.stalled)
		}
	}
}
