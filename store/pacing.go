package store

import (
	"slices"
	"time"
)

// waiter is a share in the queue of those that have nothing in flight.
type waiter struct{ since time.Time }

// hasRoom reports whether a background request may start now, and if not, after which time to ask
// again; 0: after the next change. While a reader waits there must be no queue on the link.
// Shares with nothing in flight go first.
func (l *link) hasRoom(readerWaits bool) (now bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.window()
	switch {
	case l.isDraining():
		limit = int64(l.bdp() / 2)
	case readerWaits && !l.inStartup():
		limit = int64(l.bdp())
	}
	wait = l.pacingDelay(0)
	if now = l.inFlight < limit && wait == 0 && len(l.queue) == 0; !now {
		l.sample.full = true
	}
	if l.inFlight >= limit {
		wait = 0
	}
	return now, wait
}

// hasRoomForIdle is hasRoom for a share that has nothing in flight, and waits as w. The first in
// the queue may start one request as soon as other streams leave room. Any may after maxIdleWait.
func (l *link) hasRoomForIdle(w *waiter) (now bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.queue, w) {
		w.since = time.Now()
		l.queue = append(l.queue, w)
	}
	wait = max(maxIdleWait-time.Since(w.since), 0)
	if now = l.queue[0] == w && l.paced < l.window() || wait == 0; !now {
		l.sample.full = true
	}
	return now, wait
}

// leave takes a waiter out of the queue if it is there.
func (l *link) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		l.wakeLocked()
	}
}

// pace counts a request as a stream's.
func (l *link) pace(t *transfer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.paced = true
	l.paced += t.left
	l.pacingDelay(t.left)
}

// pacingDelay records that n more bytes were requested, or fewer if n is negative. It returns how
// long to wait until the next request, so that its answer meets a free link. The debt is kept in
// bytes, not as a time, so a higher estimate shortens the wait at once.
func (l *link) pacingDelay(n int64) time.Duration {
	now, pace := time.Now(), max(l.gain()*l.bandwidth(), 1)
	l.lead = max(l.lead-pace*now.Sub(l.leadAt).Seconds(), 0)
	l.lead = min(max(l.lead+float64(n), 0), pace*maxPacingPause.Seconds())
	l.leadAt = now
	return time.Duration(l.lead / pace * float64(time.Second))
}

// isDraining reports whether so little should be in flight that the queue drains.
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

// wake makes waiters look again whether there is room.
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
