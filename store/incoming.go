package store

import (
	"io"
	"sync"
)

// incoming is the body of an answer that is received by one goroutine, and read by another one as
// far as it has arrived.
type incoming struct {
	body []byte // as long as the answer

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	n       int   // bytes of body that have arrived
	err     error // why no more will
}

func newIncoming(length int) *incoming {
	a := &incoming{body: make([]byte, length)}
	a.changed = sync.NewCond(&a.mu)
	return a
}

// receive reads the whole body.
func (a *incoming) receive(from io.Reader) error {
	for n := 0; n < len(a.body); {
		more, err := from.Read(a.body[n:])
		if n += more; n == len(a.body) {
			err = nil // io.ReadFull ignores it, too
		} else if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		a.mu.Lock()
		a.n, a.err = n, err
		a.changed.Broadcast()
		a.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// wait waits until the first n bytes have arrived. It returns how many have, or why no more will.
func (a *incoming) wait(n int) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.n < n && a.err == nil {
		a.changed.Wait()
	}
	if a.n < n {
		return a.n, a.err
	}
	return a.n, nil
}
