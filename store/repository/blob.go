package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/store"
)

// Range passes length bytes of a blob, from offset on, to take. The blob's descriptor has its
// digest and size. The bytes are not verified. If take finds them wrong, it returns an error that
// wraps a *chunk.InvalidError; they may come from a remembered redirect, and then take is called
// once more, with bytes that the registry itself or a new redirect gives. Any other error of take
// ends Range.
//
// The error wraps ErrNoRanges if the server ignores ranges, ErrDenied if the registry refuses,
// chunk.ErrNotFound if it does not have the blob, a *chunk.InvalidError if it answers with
// something else, and store.Unavailable if it wants no requests for a while.
func (r *Repository) Range(ctx context.Context, d v1.Descriptor, offset, length int64,
	take func(store.Answer) error) error {
	s := span{offset, length, d.Size}
	err := checkBlob(d)
	if err == nil && (offset < 0 || length <= 0 || length > d.Size || offset > d.Size-length) {
		err = fmt.Errorf("the blob has %d bytes", d.Size)
	}
	if err == nil {
		err = r.read(ctx, want{d, s.header(), s.check, length}, func(t *transfer) error {
			return t.passed(take(t.store(r, t.body)))
		})
	}
	return wrap(err, func() string { return fmt.Sprintf("read %s of blob %s of %s", s, d.Digest, r) })
}

// Whole passes a whole blob to take, verified: at its end, the answer's body returns a
// *chunk.InvalidError instead of io.EOF if the bytes have another digest. After a broken connection
// the body goes on with a range. Otherwise Whole is as Range.
func (r *Repository) Whole(ctx context.Context, d v1.Descriptor, take func(store.Answer) error) error {
	err := checkBlob(d)
	if err == nil {
		isWhole := func(a *answer) error { return a.mustBe(http.StatusOK) }
		err = r.read(ctx, want{d, http.Header{}, isWhole, d.Size}, func(t *transfer) error {
			c := &continued{from: r, ctx: ctx, d: d, now: t}
			defer c.Close()
			v := &verified{from: c, want: d.Digest, sum: d.Digest.Algorithm().Hash()}
			return c.passed(t, take(t.store(r, v)))
		})
	}
	return wrap(err, func() string { return fmt.Sprintf("read blob %s of %s", d.Digest, r) })
}

// Blob returns a small blob, verified. A blob of more than limit bytes is refused.
func (r *Repository) Blob(ctx context.Context, d v1.Descriptor, limit int64) (blob []byte, err error) {
	if d.Size > limit {
		return nil, fmt.Errorf("read blob %s of %s: it has %d bytes, more than the limit of %d", d.Digest, r,
			d.Size, limit)
	}
	err = r.Whole(ctx, d, func(a store.Answer) error {
		blob, err = io.ReadAll(a.Body)
		return err
	})
	if err != nil {
		return nil, err
	}
	return blob, nil
}

// wrap adds to an error what was done, unless it is the caller's own or nil.
func wrap(err error, what func() string) error {
	if own := (callerError{}); errors.As(err, &own) {
		return own.error
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what(), err)
}

// callerError is an error of take that says nothing about the answer.
type callerError struct{ error }

// isAnswer reports whether an error means that a server has given another answer than what was
// asked for.
func isAnswer(err error) bool {
	return errors.As(err, new(*chunk.InvalidError)) || errors.Is(err, chunk.ErrNotFound) || errors.Is(err, ErrNoRanges)
}

// read opens a transfer and passes it to take. If the remembered target has given wrong bytes, it
// does so once more, with the target that the registry names now.
func (r *Repository) read(ctx context.Context, w want, take func(*transfer) error) error {
	t, err := r.open(ctx, w)
	if err != nil {
		return err
	}
	err = take(t)
	t.Close()
	if t.isRemembered && isAnswer(err) {
		if t, err = r.openAt(ctx, w, nil); err == nil {
			err = take(t)
			t.Close()
		}
	}
	if err != nil && ctx.Err() == nil && !errors.As(err, new(callerError)) {
		r.targets.forget(w.blob.Digest)
	}
	return err
}
