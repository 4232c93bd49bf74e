package fuse

import "sync"

// window bounds the requests that the kernel has sent and the server has not yet read. It sets the
// connection's max_background to the number of unanswered reads that the server knows, plus
// windowRoom. The kernel blocks a process that needs one more. So a process that floods one device
// waits, and the requests of others stand behind a short queue. Reads that are stuck in the server
// do not count: the window grows by each of them, up to maxBackground.
//
// It is safe for concurrent use. Without a control file system the window stays at maxBackground.
type window struct {
	control *control

	mu   sync.Mutex
	size int
}

func newWindow(c *control) *window {
	w := &window{control: c, size: maxBackground}
	w.follow(0)
	return w
}

// follow moves the window for this number of unanswered reads, if it has to be moved.
func (w *window) follow(known int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := w.size - known; minRoom <= room && room <= maxRoom {
		return
	}
	before := w.size
	if w.size = min(known+windowRoom, maxBackground); w.size == before {
		return
	}
	w.control.setMaxBackground(w.size)
	// The kernel wakes one blocked process each time the value is written, and one each time a
	// request ends. If all requests are stuck, only the writes wake.
	w.wake(min(w.size-before, int(w.control.waiting())-before))
}

// repeat wakes processes that the kernel may have left blocked: those whose wake-up went to a
// process that then died. It is called once in a while.
func (w *window) repeat(known int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(min(windowRoom, int(w.control.waiting())-known))
}

func (w *window) wake(processes int) {
	for range processes {
		w.control.setMaxBackground(w.size)
	}
}
