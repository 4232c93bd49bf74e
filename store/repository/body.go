package repository

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// body reads the body of an answer, which has to have exactly left bytes more. It ends the request
// if fewer than minProgress bytes arrive within patience. Only the time that Read waits counts.
type body struct {
	answer   *answer
	left     int64
	patience time.Duration
	stall    *time.Timer
	rest     time.Duration // of patience
	arrived  int           // bytes since rest was set to patience
	err      error         // that ended the body; nil after io.EOF
}

func newBody(a *answer, length int64, patience time.Duration, giveUp func(error)) *body {
	b := &body{answer: a, left: length, patience: patience, rest: patience}
	b.stall = time.AfterFunc(patience, func() {
		giveUp(fmt.Errorf("stalled: less than %d bytes within %s", minProgress, patience))
	})
	b.stall.Stop()
	return b
}

// Read reads the next bytes. With the last ones it returns io.EOF, or says that there are more.
func (b *body) Read(p []byte) (n int, err error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.left == 0:
		return 0, b.end()
	case len(p) == 0:
		return 0, nil
	}
	n, err = b.wait(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case b.left == 0 && (err == nil || err == io.EOF):
		return n, b.end()
	case err == io.EOF:
		err = b.answer.invalid(fmt.Errorf("%w: %d bytes are missing", io.ErrUnexpectedEOF, b.left))
	}
	b.err = err
	return n, err
}

func (b *body) wait(p []byte) (int, error) {
	b.stall.Reset(b.rest)
	began := time.Now()
	n, err := b.answer.Body.Read(p)
	b.stall.Stop()
	b.rest -= time.Since(began)
	if b.arrived += n; b.arrived >= minProgress {
		b.rest, b.arrived = b.patience, 0
	}
	return n, err
}

// end returns io.EOF if the answer ends here.
func (b *body) end() error {
	n, err := b.wait(make([]byte, 1))
	switch {
	case n > 0:
		err = b.answer.invalid(errors.New("it is longer than what was asked for"))
	case err == io.EOF:
		return io.EOF
	case err == nil:
		err = io.ErrNoProgress
	}
	b.err = err
	return err
}
