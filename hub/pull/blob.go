package pull

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"

	"lighter/sleep"
)

// checkedReader reads a blob, and checks its size and digest at the end.
type checkedReader struct {
	from io.ReadCloser
	blob string
	size int64 // expected, bytes
	sum  hash.Hash
	read int64
}

func checked(from io.ReadCloser, blob string, size int64) *checkedReader {
	return &checkedReader{from: from, blob: blob, size: size, sum: digest.Digest(blob).Algorithm().Hash()}
}

// Read reads the next bytes.
func (c *checkedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.sum.Write(p[:n])
	c.read += int64(n)
	switch {
	case c.read > c.size:
		return n, fmt.Errorf("blob %s is longer than the %d bytes of its descriptor", c.blob, c.size)
	case err == io.EOF && c.read < c.size:
		return n, fmt.Errorf("blob %s is truncated: %d of %d bytes", c.blob, c.read, c.size)
	case err == io.EOF && hex.EncodeToString(c.sum.Sum(nil)) != digest.Digest(c.blob).Encoded():
		return n, fmt.Errorf("blob %s is corrupt: its bytes have another digest", c.blob)
	case err != nil && err != io.EOF:
		err = fmt.Errorf("read blob %s: after %d of %d bytes: %w", c.blob, c.read, c.size, err)
	}
	return n, err
}

// Close ends the transfer.
func (c *checkedReader) Close() error { return c.from.Close() }

const (
	// blobTries bounds the successive requests for a blob in which, together, less than stallBytes
	// arrive.
	blobTries = 5
	// A blob is requested again if less than stallBytes arrive in a stallWindow, so that a stalled
	// transfer does not keep other images waiting.
	stallBytes  = 64 << 10
	stallWindow = 60 * time.Second
)

// blobBackoff has the pauses before a blob is requested again.
var blobBackoff = sleep.Backoff{First: 500 * time.Millisecond, Most: 4 * time.Second}

var errStalled = fmt.Errorf("stalled: less than %d KiB in %d s", stallBytes>>10, int(stallWindow.Seconds()))

// blobReader reads a blob of a source. If the connection breaks or stalls, blobReader requests the
// rest of the blob.
type blobReader struct {
	source *Source
	ctx    context.Context // of the caller, for the reader's life
	digest string
	onRead func(n int)   // receives progress; may be nil
	window time.Duration // stallWindow; shorter in tests
	pauses sleep.Backoff // blobBackoff; shorter in tests

	body     io.ReadCloser
	request  context.Context // of body
	cancel   context.CancelCauseFunc
	stall    *time.Timer // ends the request if it stalls
	offset   int64
	progress int64 // the offset when the last stallBytes had arrived; sets tries to 0
	tries    int   // failed requests since then
}

// Read reads the next bytes.
func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.body == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		n, err := b.body.Read(p)
		b.offset += int64(n)
		if b.onRead != nil {
			b.onRead(n)
		}
		if b.offset-b.progress >= stallBytes {
			b.progress, b.tries = b.offset, 0
			b.stall.Reset(b.window)
		}
		if err == nil && n > 0 || err == io.EOF {
			return n, err
		}
		if err != nil {
			err = cmp.Or(context.Cause(b.request), err)
			_ = b.Close() // never fails
			err = b.failed(err)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (b *blobReader) open() error {
	for {
		if err := b.acquire(); err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(b.ctx)
		stall := time.AfterFunc(b.window, func() { cancel(errStalled) })
		res, err := b.source.get(ctx, "blobs", b.digest, b.offset)
		if err == nil {
			b.body, b.request, b.cancel, b.stall = res.Body, ctx, cancel, stall
			return nil
		}
		stall.Stop()
		err = cmp.Or(context.Cause(ctx), err)
		cancel(nil)
		b.release()
		var status *transport.Error
		if errors.As(err, &status) && !status.Temporary() || errors.As(err, new(resting)) {
			return err
		}
		if err := b.failed(err); err != nil {
			return err
		}
	}
}

// resting is the error of a registry that is not to be asked again for a while.
type resting interface {
	error
	RestsUntil() time.Time
}

// acquire waits until the source allows one more transfer. That time is not a stall.
func (b *blobReader) acquire() error {
	if b.source.Transfers == nil {
		return nil
	}
	return b.source.Transfers.Acquire(b.ctx, 1)
}

func (b *blobReader) release() {
	if b.source.Transfers != nil {
		b.source.Transfers.Release(1)
	}
}

// failed waits before the next try. It returns an error if there is no further try.
func (b *blobReader) failed(err error) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	if b.tries++; b.tries >= blobTries {
		return fmt.Errorf("%d tries: %w", b.tries, err)
	}
	sleep.For(b.ctx, b.pauses.After(b.tries))
	return b.ctx.Err()
}

// Close ends the current request.
func (b *blobReader) Close() error {
	if b.body != nil {
		b.stall.Stop()
		b.cancel(nil)
		_ = b.body.Close() // only read
		b.body = nil
		b.release()
	}
	return nil
}
