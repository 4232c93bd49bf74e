package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/store"
	"lighter/wire"
	"lighter/wire/client"
)

// request is a request for one object.
type request struct {
	path     string
	etag     string // of the object that the caller has; empty: the caller has none
	patience patience
}

// patience is how long an origin may take to answer a request.
type patience struct {
	header time.Duration // until the header of the answer
	body   time.Duration // for each minProgress bytes of the body; the caller's own time does not count
}

// callerError is an error of the caller's take that no other origin can prevent.
type callerError struct{ error }

func (e callerError) Unwrap() error { return e.error }

// hintError is a failure that says little about the origin: of a hint, on which only speed depends,
// or of a blob that the hub reads from another registry.
type hintError struct{ error }

func (e hintError) Unwrap() error { return e.error }

// get passes an object to take, unless the origin still has the one with the request's ETag. It
// returns chunk.ErrNotFound only if the hub itself says so. Any other refusal is a
// *chunk.InvalidError. If take finds the answer wrong (*chunk.InvalidError) or too short (io.EOF,
// io.ErrUnexpectedEOF), get returns take's error, wrapped. After a *chunk.InvalidError and after an
// answer that is too short, the next request for the object bypasses HTTP caches.
func (o *origin) get(ctx context.Context, r request, take func(store.Answer) error) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	ctx, trip := store.Timed(ctx)
	silent := time.AfterFunc(r.patience.header, func() {
		giveUp(fmt.Errorf("hub %s: no answer within %s", o.url, r.patience.header))
	})
	defer silent.Stop()
	header := http.Header{}
	if r.etag != "" {
		header.Set("If-None-Match", r.etag)
	}
	if o.wrong.has(r.path) {
		header.Set("Cache-Control", "no-cache")
	}
	res, err := o.client.Get(ctx, r.path, header)
	silent.Stop()
	answer := new(client.Error)
	switch {
	case err == nil:
	case !errors.As(err, &answer):
		return causeOf(ctx, err)
	case r.etag != "" && answer.Status == http.StatusNotModified:
		return nil
	case answer.IsRefusal() && !answer.Missing:
		o.wrong.add(r.path)
		err := fmt.Errorf("status %d without the header %s, so not from the hub: %w", answer.Status,
			wire.MissingHeader, answer)
		return &chunk.InvalidError{What: "answer", Err: err}
	default:
		return err
	}
	defer res.Body.Close()
	body := newProgressReader(res.Body, r.patience.body, &o.bytes, func() {
		giveUp(fmt.Errorf("hub %s: less than %d bytes within %s", o.url, minProgress, r.patience.body))
	})
	defer body.timer.Stop()
	err = take(store.Answer{Origin: o.url, Length: res.ContentLength, Body: body,
		RoundTrip: trip.Duration(), Reused: trip.Reused()})
	switch {
	case err == nil:
		o.wrong.remove(r.path)
		return nil
	case body.err != nil:
		return fmt.Errorf("hub %s: read the answer: %w", o.url, causeOf(ctx, body.err))
	case errors.As(err, new(*chunk.InvalidError)), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		o.wrong.add(r.path)
		// The rest of the answer must not be taken for the beginning of the next one.
		res.Body.Close()
		o.client.CloseIdleConnections()
		return fmt.Errorf("hub %s: %w", o.url, err)
	}
	return callerError{err}
}

// progressReader reads a body and calls giveUp if it arrives too slowly. Only the time that Read
// waits counts: a slow caller is not the origin's fault.
type progressReader struct {
	body     io.Reader
	patience time.Duration
	bytes    *atomic.Int64 // counts the bytes that arrive
	timer    *time.Timer
	left     time.Duration // the rest of patience
	arrived  int           // bytes since left was set to patience
	err      error         // the error that ended the body; nil after io.EOF
}

func newProgressReader(body io.Reader, patience time.Duration, bytes *atomic.Int64, giveUp func()) *progressReader {
	r := &progressReader{body: body, patience: patience, bytes: bytes, left: patience}
	r.timer = time.AfterFunc(patience, giveUp)
	r.timer.Stop()
	return r
}

func (r *progressReader) Read(b []byte) (int, error) {
	r.timer.Reset(r.left)
	began := time.Now()
	n, err := r.body.Read(b)
	r.timer.Stop()
	r.bytes.Add(int64(n))
	r.left -= time.Since(began)
	if r.arrived += n; r.arrived >= minProgress {
		r.left, r.arrived = r.patience, 0
	}
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// causeOf returns why the context of a failed request ended, or the error if it did not.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// getCompressed does what get does, for an object that is sent as one zstd stream. take reads the
// plain bytes. getCompressed takes indexTimeout at most, and adds its measurements to the estimate
// of the path.
func (o *origin) getCompressed(ctx context.Context, r request, take func(plain io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	return o.get(ctx, r, func(a store.Answer) error {
		o.path.addRoundTrip(a.RoundTrip)
		compressed := &transfer{body: a.Body, path: &o.path}
		decoder, err := compress.Reader(compressed)
		if err != nil {
			return err
		}
		plain := &plainReader{decoder: decoder}
		err = take(plain)
		decoder.Close() // from here on nothing reads the body
		switch {
		case err == nil:
			compressed.end()
		case plain.err != nil:
			return &chunk.InvalidError{What: "answer", Err: plain.err}
		}
		return err
	})
}

// plainReader remembers the error of a decoder, other than io.EOF.
type plainReader struct {
	decoder io.Reader
	err     error
}

func (r *plainReader) Read(b []byte) (int, error) {
	n, err := r.decoder.Read(b)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
