package fuse

import (
	"testing"
	"time"
)

// A stall begins when requests are unread and no READ was received since the last check. It ends
// when a READ is received, or when no request is unread.
func TestStall(t *testing.T) {
	const none = -1
	begin := time.Now()
	var s stall
	for i, step := range []struct {
		received int64
		unread   bool
		stalled  time.Duration // how long the stall has lasted; none: there is no stall
	}{
		{0, false, none},
		{5, true, none}, // the server reads
		{9, true, none},
		{9, true, 0},
		{9, true, 1 * time.Second},
		{10, true, none},
		{10, true, 0},
		{10, false, none},
		{10, false, none},
	} {
		now := begin.Add(time.Duration(i) * time.Second)
		s.check(now, step.received, step.unread)
		stalled := time.Duration(none)
		if !s.since.IsZero() {
			stalled = now.Sub(s.since)
		}
		if stalled != step.stalled {
			t.Errorf("step %d: stalled for %v, want %v", i, stalled, step.stalled)
		}
	}
}
