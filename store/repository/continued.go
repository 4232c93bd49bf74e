package repository

import (
	"context"
	"errors"
	"io"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/sleep"
	"lighter/store"
)

const (
	// maxTries bounds the successive requests for a whole blob in which, together, less than
	// minProgress arrives.
	maxTries = 5
	// longestPause is the longest pause of a registry that a whole blob waits for.
	longestPause = 30 * time.Second
)

// pauses has the pauses before a blob is requested further.
var pauses = sleep.Backoff{First: 250 * time.Millisecond, Most: 4 * time.Second, Jitter: 0.5}

// continued reads a whole blob. If a connection breaks or stalls, it requests the rest of the blob.
type continued struct {
	from *Repository
	ctx  context.Context // of the caller, for the reader's life
	d    v1.Descriptor

	now      *transfer // nil: the rest has to be requested
	offset   int64     // of the next byte
	progress int64     // the offset when the last minProgress had arrived; sets tries to 0
	tries    int       // failed requests since then
	err      error     // that ended the reader; nil after io.EOF
}

// Read reads the next bytes.
func (c *continued) Read(p []byte) (int, error) {
	for c.err == nil {
		err := c.open()
		var n int
		if err == nil {
			n, err = c.now.body.Read(p)
			if c.offset += int64(n); c.offset-c.progress >= minProgress {
				c.progress, c.tries = c.offset, 0
			}
			if err == nil || err == io.EOF {
				return n, err
			}
			err = c.now.failure()
			c.Close()
			c.from.targets.forget(c.d.Digest)
		}
		if !c.mayGoOn(err) {
			c.err = err
		}
		if n > 0 {
			return n, c.err
		}
	}
	return 0, c.err
}

// open requests the rest of the blob, if there is no transfer.
func (c *continued) open() (err error) {
	if c.now == nil {
		s := span{c.offset, c.d.Size - c.offset, c.d.Size}
		c.now, err = c.from.open(c.ctx, want{c.d, s.header(), s.check, s.length})
	}
	return err
}

// mayGoOn waits before the next request. It returns false if there is none.
func (c *continued) mayGoOn(err error) bool {
	if c.tries++; c.tries >= maxTries || c.offset == c.d.Size || isAnswer(err) || errors.Is(err, ErrDenied) {
		return false
	}
	wait := c.from.pauses.After(c.tries)
	var busy store.Unavailable
	if errors.As(err, &busy) {
		wait = max(wait, busy.RetryAfter())
	}
	return wait <= longestPause && sleep.For(c.ctx, wait)
}

// Close ends the current transfer.
func (c *continued) Close() {
	if c.now != nil {
		c.now.Close()
		c.now = nil
	}
}

// passed returns the error of a blob whose bytes take has got: the reader's rather than take's. t
// was its first transfer.
func (c *continued) passed(t *transfer, err error) error {
	if err == nil {
		return nil
	}
	if c.err != nil {
		return c.err
	}
	return blame(t, err)
}
