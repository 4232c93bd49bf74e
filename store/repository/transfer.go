package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/store"
)

// want is a blob, or a part of it, that is requested.
type want struct {
	blob   v1.Descriptor
	header http.Header
	check  func(*answer) error // whether the answer is the one that is wanted, by its header
	length int64               // of the answer's body
}

// transfer is an answer that is being read. The caller closes it.
type transfer struct {
	*answer
	body         *body
	length       int64
	isRemembered bool // it comes from a remembered target

	ctx     context.Context // of the request
	giveUp  context.CancelCauseFunc
	release func()
}

// open requests a blob. If a remembered target gives a wrong answer, or a target refuses the
// request, the registry is asked again, once.
func (r *Repository) open(ctx context.Context, w want) (*transfer, error) {
	target := r.targets.get(w.blob.Digest)
	t, err := r.openAt(ctx, w, target)
	if errors.As(err, new(refusedError)) || target != nil && isAnswer(err) {
		t, err = r.openAt(ctx, w, nil)
	}
	if err != nil && ctx.Err() == nil {
		r.targets.forget(w.blob.Digest)
	}
	return t, err
}

// openAt requests a blob at a remembered target, or, if that is nil, from the registry.
func (r *Repository) openAt(ctx context.Context, w want, target *url.URL) (*transfer, error) {
	release, err := r.acquire(ctx)
	if err != nil {
		return nil, err
	}
	t := &transfer{length: w.length, isRemembered: target != nil, release: release}
	t.ctx, t.giveUp = context.WithCancelCause(ctx)
	from := target
	if from == nil {
		from = r.url("blobs", w.blob.Digest.String())
	}
	t.answer, err = r.follow(t.ctx, http.MethodGet, from, w.header, target != nil)
	if err == nil {
		t.body = newBody(t.answer, w.length, r.stall, t.giveUp)
		err = w.check(t.answer)
	}
	if err == nil && t.ContentLength >= 0 && t.ContentLength != w.length {
		err = t.invalid(fmt.Errorf("it has %d bytes, want %d", t.ContentLength, w.length))
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	if t.isTarget && target == nil {
		r.targets.add(w.blob.Digest, t.url)
	}
	return t, nil
}

// acquire waits until the registry's table allows one more transfer.
func (r *Repository) acquire(ctx context.Context) (release func(), err error) {
	transfers := r.session.Transfers()
	if transfers == nil {
		return func() {}, nil
	}
	if err := transfers.Acquire(ctx, 1); err != nil {
		return nil, cause(ctx, err)
	}
	return func() { transfers.Release(1) }, nil
}

// Close ends the transfer.
func (t *transfer) Close() {
	if t.release == nil {
		return // it was closed before
	}
	if t.body != nil {
		t.body.stall.Stop()
		_ = t.Body.Close() // only read
	}
	t.giveUp(nil)
	t.release()
	t.release = nil
}

// store returns the transfer as package store reads it.
func (t *transfer) store(r *Repository, body io.Reader) store.Answer {
	return store.Answer{Origin: r.name.RegistryStr(), Length: t.length, Body: body, RoundTrip: t.trip.Duration(),
		Reused: t.trip.Reused()}
}

// failure returns the error that has ended the body, or nil.
func (t *transfer) failure() error {
	switch err := t.body.err; {
	case err == nil || errors.As(err, new(*chunk.InvalidError)):
		return err
	default:
		return fmt.Errorf("%s: after %d of %d bytes: %w", t, t.length-t.body.left, t.length, cause(t.ctx, err))
	}
}

// passed returns the error of a transfer whose bytes take has got: the body's rather than take's.
func (t *transfer) passed(err error) error {
	if err == nil {
		return nil
	}
	if failed := t.failure(); failed != nil {
		return failed
	}
	return blame(t, err)
}

// blame returns take's error: about the answer, or its own.
func blame(t *transfer, err error) error {
	if errors.As(err, new(*chunk.InvalidError)) {
		return fmt.Errorf("%s: %w", t, err)
	}
	return callerError{err}
}
