package fuse

import (
	"sync"
	"time"
)

// connection is the kernel's side of a FUSE connection, as far as the window needs it.
type connection interface {
	// setMaxBackground sets how many background requests may be unanswered. The kernel then wakes
	// one process that is blocked, if there is room for its request.
	setMaxBackground(n int)
	// waiting returns the number of unanswered requests, including those of blocked processes; -1
	// if it is unknown.
	waiting() int64
}

var _ connection = (*control)(nil)

// window bounds the requests that the kernel has sent and the server has not yet read. It sets the
// connection's max_background to the number of unanswered reads that the server knows, plus
// windowRoom. The kernel blocks each process that would exceed this number. So a process that
// floods one device waits, and only a short queue precedes a request of another process. Each read
// that is stuck in the server widens the window by one request, up to maxBackground.
//
// A window is safe for concurrent use. Without a control file system it has no effect.
type window struct {
	connection connection

	mu   sync.Mutex
	size int // max_background, as the window has set it
	lost int // number of requests that the kernel counts as unanswered and no server will answer
}

func newWindow(c connection) *window { return &window{connection: c, size: maxBackground} }

// follow moves the window if its room beyond known, the number of unanswered reads, is too small or
// too large.
func (w *window) follow(known int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := w.size - known - w.lost; minRoom <= room && room <= maxRoom {
		return
	}
	w.resize(min(known+w.lost+windowRoom, maxBackground))
}

// open sets the largest window. It is called before this server leaves the connection, because the
// successor may be a version that sets no window.
func (w *window) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resize(maxBackground)
}

// resize sets the size. The caller holds mu.
func (w *window) resize(size int) {
	before := w.size
	if w.size = size; size == before {
		return
	}
	w.connection.setMaxBackground(size)
	// The kernel wakes one blocked process for each write of max_background, and one for each
	// request that ends. If all requests are stuck, only these writes wake processes.
	w.wake(min(size-before, int(w.connection.waiting())-before))
}

func (w *window) wake(processes int) {
	for range processes {
		w.connection.setMaxBackground(w.size)
	}
}

// check adapts the window from time to time. inKernel is the kernel's number of unanswered
// requests. known is the server's number of unanswered reads. stalled is how long the server has
// received no request although the kernel has requests for it.
//
// A previous server may have lost requests. The kernel counts them for ever, so they would use up
// the room. A long stall shows that there are such requests. check also repeats wake-ups: a process
// that was woken may have been killed, and the other blocked processes still wait.
func (w *window) check(inKernel int64, known int, stalled time.Duration) {
	w.mu.Lock()
	switch {
	case inKernel <= int64(known):
		w.lost = 0
	case stalled >= lostAfter:
		w.lost = int(inKernel) - known
	}
	w.wake(min(windowRoom, int(inKernel)-known-w.lost))
	w.mu.Unlock()
	w.follow(known)
}
