package hub

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// grace is how long after something came of a hub it does not count as silent: one
// that is busy, or at the end of a full link, is not one that is gone.
const grace = 10 * time.Second

// Watch is for those who wait for hubs and can do without. It calls giveUp, with the
// reason, when the hubs are silent, unless stop is called before. They are if nothing
// came for the time silent; where something did, as heard tells, they have some
// seconds after the last of it, but the time longest in all at most.
func Watch(heard func() time.Time, silent, longest time.Duration, giveUp func(why error)) (stop func()) {
	stopped := make(chan struct{})
	begin := time.Now()
	go func() {
		for {
			end, why := begin.Add(silent), fmt.Errorf("nothing came for %s", silent.Round(time.Millisecond))
			if patient := heard().Add(grace); patient.After(end) {
				end, why = patient, fmt.Errorf("nothing more came for %s", grace)
			}
			if last := begin.Add(longest); last.Before(end) {
				end, why = last, fmt.Errorf("it took more than %s", longest.Round(time.Millisecond))
			}
			left := time.Until(end)
			if left <= 0 {
				giveUp(why)
				return
			}
			select {
			case <-stopped:
				return
			case <-time.After(left):
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopped) })
}

// last is when something happened last.
type last struct {
	since time.Time    // when it had not happened yet
	after atomic.Int64 // it happened so long after that; 0: never
}

func (l *last) note() { l.after.Store(int64(time.Since(l.since))) }

// at returns when it was; zero: never.
func (l *last) at() time.Time {
	after := l.after.Load()
	if after == 0 {
		return time.Time{}
	}
	return l.since.Add(time.Duration(after))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// heardConn is a connection of which is noted when bytes come.
type heardConn struct {
	net.Conn
	sent *last
}

func (c heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.sent.note()
	}
	return n, err
}
