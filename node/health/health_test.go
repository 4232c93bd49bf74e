package health

import (
	"strings"
	"testing"
	"time"

	"lighter/node/fuse"
)

// unserved are devices whose connection has ended.
type unserved struct{ fuse.ServerStats }

func (unserved) Unserved() bool            { return true }
func (u unserved) Stats() fuse.ServerStats { return u.ServerStats }

// A node that stops is healthy although it answers no requests: the next daemon answers them.
func TestStoppedNodeIsHealthy(t *testing.T) {
	c := New(t.TempDir(), unserved{})
	if err := c.Healthy(t.Context()); err == nil || !strings.Contains(err.Error(), "not answered") {
		t.Errorf("unserved: got %v, want an error", err)
	}
	c.Stop()
	if err := c.Healthy(t.Context()); err != nil {
		t.Errorf("stopped: got %v, want none", err)
	}
}

// If no hub answers, reads wait for up to 110 s and then fail. Only a longer wait means that the
// daemon hangs.
func TestOldestRead(t *testing.T) {
	for oldest, healthy := range map[time.Duration]bool{
		0: true, 110 * time.Second: true, maxReadTime: true, maxReadTime + time.Second: false,
	} {
		if err := checkOldest(oldest); (err == nil) != healthy {
			t.Errorf("unanswered for %v: got %v, want healthy %t", oldest, err, healthy)
		}
	}
}

// The error about requests that wait in the kernel has the number of the kernel's unanswered
// requests.
func TestStall(t *testing.T) {
	if err := checkStall(fuse.ServerStats{InKernel: 70, Active: 60, Queued: 10, Stalled: maxStall}); err != nil {
		t.Errorf("at the limit: got %v, want none", err)
	}
	err := checkStall(fuse.ServerStats{InKernel: 90, Active: 60, Queued: 10, Stalled: maxStall + time.Second})
	if err == nil || !strings.Contains(err.Error(), "wait in the kernel") || !strings.Contains(err.Error(), "90") {
		t.Errorf("beyond the limit: got %v, want an error with the number of requests", err)
	}
}
