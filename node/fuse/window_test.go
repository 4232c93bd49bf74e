package fuse

import (
	"testing"
	"time"
)

// fakeConnection counts requests as the kernel does, and wakes blocked processes one by one.
type fakeConnection struct {
	max, background, blocked int
}

func (f *fakeConnection) waiting() int64 { return int64(f.background + f.blocked) }

func (f *fakeConnection) setMaxBackground(n int) {
	f.max = n
	if f.blocked > 0 && f.background < f.max {
		f.blocked--
		f.background++
	}
}

// send makes n processes send a request each.
func (f *fakeConnection) send(n int) {
	for range n {
		if f.background < f.max {
			f.background++
		} else {
			f.blocked++
		}
	}
}

// The window stays a bounded number of requests larger than the number of known reads, so that no
// process stays blocked.
func TestWindowFollowsKnownReads(t *testing.T) {
	f := &fakeConnection{max: maxBackground}
	w := newWindow(f)
	w.follow(0)
	if f.max != windowRoom {
		t.Fatalf("without reads: got a window of %d, want %d", f.max, windowRoom)
	}
	f.send(1000) // all of these reads get stuck in the server
	for known := 0; known < f.background; known++ {
		w.follow(known + 1)
		if unread := f.background - known; unread > maxRoom {
			t.Fatalf("%d reads known, %d unread; want at most %d", known, unread, maxRoom)
		}
	}
	if f.background != 1000 || f.blocked != 0 {
		t.Errorf("got %d requests sent and %d processes blocked, want 1000 and 0", f.background, f.blocked)
	}
	f.background = 0
	w.follow(1)
	if f.max != 1+windowRoom {
		t.Errorf("after the answers: got a window of %d, want %d", f.max, 1+windowRoom)
	}
	w.open()
	if f.max != maxBackground {
		t.Errorf("opened: got a window of %d, want %d", f.max, maxBackground)
	}
}

// Requests that a previous server lost do not use up the room of other requests.
func TestWindowWithoutLostRequests(t *testing.T) {
	f := &fakeConnection{max: maxBackground, background: 200}
	w := newWindow(f)
	w.follow(0)
	f.send(10)
	if f.blocked != 10 {
		t.Fatalf("got %d blocked processes, want 10", f.blocked)
	}
	w.check(f.waiting(), 0, lostAfter-time.Second)
	if f.blocked != 10 {
		t.Errorf("before the requests count as lost: got %d blocked processes, want 10", f.blocked)
	}
	w.check(f.waiting(), 0, lostAfter)
	if f.blocked != 0 {
		t.Errorf("once they count as lost: got %d blocked processes, want 0", f.blocked)
	}
	w.check(f.waiting(), 10, 0)
	f.send(windowRoom / 2)
	if f.blocked != 0 {
		t.Errorf("later: got %d blocked processes, want 0", f.blocked)
	}
	f.background = 0
	w.check(0, 0, 0)
	if f.max != windowRoom {
		t.Errorf("once they are answered: got a window of %d, want %d", f.max, windowRoom)
	}
}

// If a process was woken and then killed, another blocked process is woken in its place.
func TestWindowRepeatsWakeUps(t *testing.T) {
	f := &fakeConnection{max: maxBackground}
	w := newWindow(f)
	w.follow(0)
	f.blocked = 5 // their wake-ups were lost: there is room for all of them
	w.check(f.waiting(), 0, 0)
	if f.blocked != 0 {
		t.Errorf("got %d blocked processes, want 0", f.blocked)
	}
}
