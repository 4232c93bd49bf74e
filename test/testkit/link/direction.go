package link

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A direction holds the bytes in flight in one direction of a connection: a ring buffer, and the
// time when each segment is due. One goroutine fills it, and one empties it.
type direction struct {
	proxy *Proxy

	mu        sync.Mutex
	changed   sync.Cond
	ring      []byte
	sentBytes int64     // number of bytes that were sent so far
	received  int64     // number of bytes that arrived so far
	segments  []segment // segments in flight, in order of arrival
	stopped   bool
}

// A segment is a run of bytes that arrived at the proxy together.
type segment struct {
	end int64 // offset of the first byte after it, in the whole stream
	due time.Time
	err error // of the connection after these bytes; io.EOF: the sender has closed its side
}

// maxSegments bounds the list of segments if many short ones arrive.
const maxSegments = 64 << 10

func newDirection(p *Proxy) *direction {
	d := &direction{proxy: p, ring: make([]byte, minBuffer)}
	d.changed.L = &d.mu
	return d
}

// space waits for free space in the ring and returns a part of it, or nil after stop.
func (d *direction) space() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		size := int64(len(d.ring))
		switch {
		case d.stopped:
			return nil
		case d.received-d.sentBytes < size && len(d.segments) < maxSegments:
			from := d.received % size
			return d.ring[from:min(size, from+size-(d.received-d.sentBytes))]
		case d.received-d.sentBytes == size && d.grow():
		default:
			d.changed.Wait()
		}
	}
}

// grow doubles a full ring if maxBuffer and sharedBuffer allow it, and reports whether it did. It
// does not modify the old ring, because bytes of the old ring may still be sent.
func (d *direction) grow() bool {
	size := int64(len(d.ring))
	if 2*size > maxBuffer {
		return false
	}
	if d.proxy.shared.Add(-size) < 0 {
		d.proxy.shared.Add(size)
		return false
	}
	ring := make([]byte, 2*size)
	for at := d.sentBytes; at < d.received; {
		piece := d.ring[at%size:]
		piece = piece[:min(int64(len(piece)), d.received-at)]
		for len(piece) > 0 {
			n := copy(ring[at%(2*size):], piece)
			piece, at = piece[n:], at+int64(n)
		}
	}
	d.ring = ring
	return true
}

// release gives the space that grow has reserved back to the proxy.
func (d *direction) release() { d.proxy.shared.Add(int64(len(d.ring)) - minBuffer) }

// add records that n bytes were written to the slice that space returned.
func (d *direction) add(n int, due time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.received += int64(n)
	d.segments = append(d.segments, segment{d.received, due, err})
	d.changed.Signal()
}

// next waits for a segment. It returns the bytes that are due, up to the end of the ring, or the
// time until the first segment is due, or the error that ended the connection.
func (d *direction) next() (due []byte, wait time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.segments) == 0 {
		d.changed.Wait()
	}
	now := time.Now()
	if wait := d.segments[0].due.Sub(now); wait > 0 {
		return nil, wait, nil
	}
	if first := d.segments[0]; first.end == d.sentBytes && first.err != nil {
		return nil, 0, first.err
	}
	end := d.sentBytes
	for _, m := range d.segments {
		if m.due.After(now) {
			break
		}
		end = m.end
	}
	size := int64(len(d.ring))
	from := d.sentBytes % size
	return d.ring[from:min(size, from+end-d.sentBytes)], 0, nil
}

// advance records that n bytes of the slice that next returned were sent.
func (d *direction) advance(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sentBytes += int64(n)
	done := 0
	for done < len(d.segments) && d.segments[done].end <= d.sentBytes && d.segments[done].err == nil {
		done++
	}
	d.segments = append(d.segments[:0], d.segments[done:]...)
	d.changed.Signal()
}

// stop makes space return nil.
func (d *direction) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.changed.Signal()
}

// clock is a timer with a finer resolution than package time. In an idle process, package time
// rounds up to a millisecond.
type clock struct{ timer *os.File }

func newClock() (*clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer: %w", err)
	}
	return &clock{os.NewFile(uintptr(fd), "timer")}, nil
}

func (c *clock) wait(d time.Duration) error {
	raw, err := c.timer.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
	})
	if err == nil {
		err = set
	}
	if err == nil {
		_, err = c.timer.Read(make([]byte, 8))
	}
	return err
}

func (c *clock) close() { c.timer.Close() }
