package origin

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Watch bounds how long a caller waits for origins, if it can do without their answer. It calls
// giveUp with the reason, once, at the earlier of two times:
//
//   - when the origins count as silent: the duration silent after the call of Watch, or the
//     duration grace after heard(), whichever is later. heard returns when bytes last arrived,
//     perhaps before the call.
//   - the duration longest after the call, even if bytes still arrive.
//
// After stop has returned, giveUp is not called, and no call of it runs. So giveUp must not call
// stop.
func Watch(heard func() time.Time, silent, longest time.Duration, giveUp func(why error)) (stop func()) {
	var end sync.Once // done by the call of giveUp, or by stop
	stopped := make(chan struct{})
	began := time.Now()
	go func() {
		for {
			until, why := began.Add(silent), fmt.Errorf("no answer within %s", silent.Round(time.Millisecond))
			if patient := heard().Add(grace); patient.After(until) {
				until, why = patient, fmt.Errorf("no more bytes within %s", grace)
			}
			if last := began.Add(longest); last.Before(until) {
				until, why = last, fmt.Errorf("not complete within %s", longest.Round(time.Millisecond))
			}
			left := time.Until(until)
			if left <= 0 {
				end.Do(func() { giveUp(why) })
				return
			}
			select {
			case <-stopped:
				return
			case <-time.After(left):
			}
		}
	}()
	return func() { end.Do(func() { close(stopped) }) }
}

// lastTime is the time of an event's last occurrence. It is safe for concurrent use.
type lastTime struct {
	origin time.Time
	after  atomic.Int64 // nanoseconds since origin; 0: never
}

func (l *lastTime) note() { l.after.Store(int64(time.Since(l.origin))) }

// at returns the time; zero: never.
func (l *lastTime) at() time.Time {
	after := l.after.Load()
	if after == 0 {
		return time.Time{}
	}
	return l.origin.Add(time.Duration(after))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// watchedConn is a connection that notes when bytes arrive.
type watchedConn struct {
	net.Conn
	received *lastTime
}

func (c watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.received.note()
	}
	return n, err
}
