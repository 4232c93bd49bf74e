package store

import (
	"slices"
	"time"
)

// waiter is a place in the queue of shares that have nothing in flight. since is when it was
// queued.
type waiter struct{ since time.Time }

// hasRoom reports whether a background request may start now. While a reader waits, fewer bytes may
// be in flight, so that there is no queue on the link. This does not apply in startup, when the
// link's bandwidth is not known yet. Shares with nothing in flight go first.
func (l *link) hasRoom(readerWaits bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.window()
	switch {
	case l.isDraining():
		limit = int64(l.bdp() / 2)
	case readerWaits && !l.inStartup():
		limit = int64(l.bdp())
	}
	now := l.inFlight < limit && len(l.queue) == 0
	if !now {
		l.sample.full = true
	}
	return now
}

// hasRoomForIdle does what hasRoom does, for a share that has nothing in flight. w is the share's
// place in the queue. The first share in the queue may start one request as soon as other streams
// leave room. Each share may start one after maxIdleWait; wait is the rest of that time.
func (l *link) hasRoomForIdle(w *waiter) (now bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.queue, w) {
		w.since = time.Now()
		l.queue = append(l.queue, w)
	}
	wait = max(maxIdleWait-time.Since(w.since), 0)
	if now = l.queue[0] == w && l.streaming < l.window() || wait == 0; !now {
		l.sample.full = true
	}
	return now, wait
}

// leave removes a waiter from the queue, if it is there.
func (l *link) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		l.wakeLocked()
	}
}

// addStream counts a request as a stream's.
func (l *link) addStream(t *transfer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.isStream = true
	l.streaming += t.left
}

// isDraining reports whether the queue is to be drained now (see drainEvery).
func (l *link) isDraining() bool {
	drain := max(3*l.roundTrip(), minDrain)
	if l.inStartup() {
		l.drained = time.Now().Add(-drain)
		return false
	}
	if time.Since(l.drained) >= drainEvery {
		l.drained = time.Now()
	}
	return time.Since(l.drained) < drain
}

// changed returns a channel that is closed when there may be room.
func (l *link) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	return l.freed
}

// wake makes waiting shares check again whether there is room.
func (l *link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked()
}

func (l *link) wakeLocked() {
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}
