package link

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A way is what is on its way in one direction of a connection: a ring of bytes,
// and when they are due. One goroutine fills it and one empties it.
type way struct {
	proxy *Proxy

	mu      sync.Mutex
	changed sync.Cond
	ring    []byte
	sentTo  int64  // all bytes before this have been sent
	came    int64  // so many have come
	marks   []mark // in order
	stopped bool
}

// mark says when the bytes before end are due, and how the sender ended after them.
type mark struct {
	end int64
	due time.Time
	err error // io.EOF: as it should
}

// maxMarks bounds marks where bytes come singly.
const maxMarks = 64 << 10

func newWay(p *Proxy) *way {
	w := &way{proxy: p, ring: make([]byte, leastRoom)}
	w.changed.L = &w.mu
	return w
}

// room waits for room in the ring and returns a piece of it, or nil if nothing is
// wanted any more.
func (w *way) room() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		size := int64(len(w.ring))
		switch {
		case w.stopped:
			return nil
		case w.came-w.sentTo < size && len(w.marks) < maxMarks:
			from := w.came % size
			return w.ring[from:min(size, from+size-(w.came-w.sentTo))]
		case w.came-w.sentTo == size && w.grow():
		default:
			w.changed.Wait()
		}
	}
}

// grow doubles a ring that is full, if it may. What is being sent from the old one
// stays as it is.
func (w *way) grow() bool {
	size := int64(len(w.ring))
	if 2*size > mostRoom {
		return false
	}
	if w.proxy.shared.Add(-size) < 0 {
		w.proxy.shared.Add(size)
		return false
	}
	ring := make([]byte, 2*size)
	for at := w.sentTo; at < w.came; {
		piece := w.ring[at%size:]
		piece = piece[:min(int64(len(piece)), w.came-at)]
		for len(piece) > 0 {
			n := copy(ring[at%(2*size):], piece)
			piece, at = piece[n:], at+int64(n)
		}
	}
	w.ring = ring
	return true
}

// giveBack returns what grow took.
func (w *way) giveBack() { w.proxy.shared.Add(int64(len(w.ring)) - leastRoom) }

// add says that n bytes were put into what room returned.
func (w *way) add(n int, due time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came += int64(n)
	w.marks = append(w.marks, mark{w.came, due, err})
	w.changed.Signal()
}

// next waits until there is something, and returns what is due, or how long that
// takes, or how the sender has ended.
func (w *way) next() (due []byte, wait time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.marks) == 0 {
		w.changed.Wait()
	}
	now := time.Now()
	if wait := w.marks[0].due.Sub(now); wait > 0 {
		return nil, wait, nil
	}
	if first := w.marks[0]; first.end == w.sentTo && first.err != nil {
		return nil, 0, first.err
	}
	end := w.sentTo
	for _, m := range w.marks {
		if m.due.After(now) {
			break
		}
		end = m.end
	}
	size := int64(len(w.ring))
	from := w.sentTo % size
	return w.ring[from:min(size, from+end-w.sentTo)], 0, nil
}

// sent says that n bytes of what next returned are gone.
func (w *way) sent(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sentTo += int64(n)
	done := 0
	for done < len(w.marks) && w.marks[done].end <= w.sentTo && w.marks[done].err == nil {
		done++
	}
	w.marks = append(w.marks[:0], w.marks[done:]...)
	w.changed.Signal()
}

// stop has whoever waits for room wait no more.
func (w *way) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.changed.Signal()
}

// clock waits more exactly than package time, which rounds up to a millisecond
// where nothing else is to be done.
type clock struct{ timer *os.File }

func newClock() (*clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
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
