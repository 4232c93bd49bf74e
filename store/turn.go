package store

import (
	"slices"
	"time"
)

const (
	// drainEvery is how often the queue drains, by half of what the link holds being
	// on its way, for three round trips and leastDrain at least: one in which it does,
	// and one that is timed.
	drainEvery = tripTime / 2
	leastDrain = 20 * time.Millisecond
	// longestPause bounds the time between two requests, and longestTurn that for which
	// others keep a share waiting for which nothing is on its way.
	longestPause = time.Second
	longestTurn  = 5 * time.Second
)

// waiter is a share that waits for its turn, and since when in the line.
type waiter struct{ since time.Time }

// turn tells whether more may be asked for that nobody waits for, and if not for how
// long at least; 0: until something has changed. While a reader waits there is to be no
// queue. Shares for which nothing is on its way go first.
func (l *link) turn(readerWaits bool) (now bool, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := l.window()
	switch {
	case l.isDraining():
		most = int64(l.holds() / 2)
	case readerWaits && !l.isNew():
		most = int64(l.holds())
	}
	in = l.ahead(0)
	if now = l.onTheWay < most && in == 0 && len(l.line) == 0; !now {
		l.sample.full = true
	}
	if l.onTheWay >= most {
		in = 0
	}
	return now, in
}

// firstTurn is turn for a share for which nothing is on its way, and that waits as w: in
// its place in the line it may begin one unit, as soon as others' streams leave room,
// or have kept it waiting for long.
func (l *link) firstTurn(w *waiter) (now bool, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.line, w) {
		w.since = time.Now()
		l.line = append(l.line, w)
	}
	in = max(longestTurn-time.Since(w.since), 0)
	if now = l.line[0] == w && l.paced < l.window() || in == 0; !now {
		l.sample.full = true
	}
	return now, in
}

// leave says that who was waiting does so no more.
func (l *link) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.line, w); i >= 0 {
		l.line = slices.Delete(l.line, i, i+1)
		l.wakeLocked()
	}
}

// pace notes that what a crossing brings is asked for in its turn.
func (l *link) pace(c *crossing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.paced = true
	l.paced += c.left
	l.ahead(c.left)
}

// ahead notes that n bytes more were asked for, or fewer, and returns how long it is until
// the next may be, so that it comes when the link is free for it. It counts bytes and not
// time: a pace that turns out to be faster counts at once.
func (l *link) ahead(n int64) time.Duration {
	now, pace := time.Now(), max(l.gain()*l.carries(), 1)
	l.lead = max(l.lead-pace*now.Sub(l.leadAt).Seconds(), 0)
	l.lead = min(max(l.lead+float64(n), 0), pace*longestPause.Seconds())
	l.leadAt = now
	return time.Duration(l.lead / pace * float64(time.Second))
}

// isDraining tells whether so little is to be on its way that no first byte waits.
func (l *link) isDraining() bool {
	drain := max(3*l.roundTrip(), leastDrain)
	if l.isNew() {
		l.drained = time.Now().Add(-drain)
		return false
	}
	if time.Since(l.drained) >= drainEvery {
		l.drained = time.Now()
	}
	return time.Since(l.drained) < drain
}
