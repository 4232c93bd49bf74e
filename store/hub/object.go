package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/wire"
)

// patience is how long an origin may be silent: until the header, then until pace
// more bytes of the body have come, or its end.
type patience struct{ header, body time.Duration }

// pace is what is more than silence: less would keep a reader for as long as one
// unit may take at all, and a pull for as long as an index may.
const pace = 4 << 10

// take reads one answer, of length bytes (-1: not known), and says what is wrong
// with it: an error that wraps a *chunk.InvalidError, or the end of what it read,
// is the answer's fault, any other its own.
type take = func(length int64, body io.Reader) error

// ownError is an error of take that no other answer would mend.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// hintError is about something that is a hint and no more.
type hintError struct{ error }

func (e hintError) Unwrap() error { return e.error }

// object asks for an object and has take read it, unless its ETag is the one that is
// given, if any is. ErrNotFound is only what the hub itself says; any other answer that
// is not the object is invalid, and the object is asked for past all caches next time.
func (c *Client) object(ctx context.Context, path, etag string, p patience, received *atomic.Int64, take take) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	ctx, trip := timed(ctx)
	silent := time.AfterFunc(p.header, func() { giveUp(fmt.Errorf("hub %s: nothing came for %s", c.URL(), p.header)) })
	defer silent.Stop()
	header := http.Header{}
	if etag != "" {
		header.Set("If-None-Match", etag)
	}
	if c.wrong.was(path) {
		header.Set("Cache-Control", "no-cache")
	}
	res, err := c.doWith(ctx, header, http.MethodGet, path, nil, nil)
	silent.Stop()
	said := new(Error)
	switch {
	case err == nil:
	case !errors.As(err, &said):
		return because(ctx, err)
	case etag != "" && said.Status == http.StatusNotModified:
		return nil
	case said.Refusal() && !said.Missing:
		c.wrong.add(path)
		return &chunk.InvalidError{What: "the answer", Err: fmt.Errorf("status %d without the header %s, so not a hub's own: %w", said.Status, wire.MissingHeader, said)}
	default:
		return err
	}
	defer res.Body.Close()
	patient := time.AfterFunc(p.body, func() { giveUp(fmt.Errorf("hub %s: next to nothing came for %s", c.URL(), p.body)) })
	defer patient.Stop()
	patient.Stop() // it runs while somebody reads, who may be slow
	left, came := p.body, 0
	body := &watched{trip: trip, read: func(b []byte) (int, error) {
		patient.Reset(left)
		begin := time.Now()
		n, err := res.Body.Read(b)
		patient.Stop()
		received.Add(int64(n))
		left -= time.Since(begin)
		if came += n; came >= pace {
			left, came = p.body, 0
		}
		return n, err
	}}
	err = take(res.ContentLength, body)
	switch {
	case err == nil:
		c.wrong.forget(path)
		return nil
	case body.err != nil:
		return fmt.Errorf("hub %s: read the answer: %w", c.URL(), because(ctx, body.err))
	case errors.As(err, new(*chunk.InvalidError)), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		c.wrong.add(path)
		// More of it may come, and must not be taken for the beginning of another answer.
		res.Body.Close()
		c.http.CloseIdleConnections()
		return fmt.Errorf("hub %s: %w", c.URL(), err)
	}
	return ownError{err}
}

// roundTrip measures one.
type roundTrip struct {
	begun       time.Time
	sent, first atomic.Int64 // ns after that; 0: not yet
	reused      atomic.Bool
}

// timed returns a context for a request that is to be measured.
func timed(ctx context.Context) (context.Context, *roundTrip) {
	r := &roundTrip{begun: time.Now()}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { r.reused.Store(i.Reused) },
		WroteRequest:         func(httptrace.WroteRequestInfo) { r.sent.Store(int64(time.Since(r.begun))) },
		GotFirstResponseByte: func() { r.first.Store(int64(time.Since(r.begun))) },
	}), r
}

// took returns how long the first byte took from when the request had been sent; 0: it
// is not known.
func (r *roundTrip) took() time.Duration {
	sent, first := r.sent.Load(), r.first.Load()
	if sent == 0 || first == 0 {
		return 0
	}
	return time.Duration(first - sent)
}

// because says why a context ended that an error comes from.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// watched remembers what went wrong with a reader.
type watched struct {
	read func([]byte) (int, error)
	err  error
	trip *roundTrip
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.read(b)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// compressed is object, of what travels as one zstd stream: take reads plain
// bytes.
func (c *Client) compressed(ctx context.Context, path, etag string, p patience, received *atomic.Int64, take func(plain io.Reader) error) error {
	return c.object(ctx, path, etag, p, received, func(_ int64, body io.Reader) error {
		answer, came := body.(*watched), arrival{way: &c.way}
		c.way.trip(answer.trip.took())
		decoder, err := zstd.NewReader(readerFunc(func(b []byte) (int, error) {
			read, err := answer.Read(b)
			came.add(read)
			return read, err
		}), zstd.WithDecoderMaxWindow(wire.MaxWindow), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return err
		}
		plain := &watched{read: decoder.Read}
		err = take(plain)
		decoder.Close() // so that nobody reads the answer any more
		if err == nil {
			came.end()
		}
		if err != nil && plain.err != nil {
			return &chunk.InvalidError{What: "the answer", Err: plain.err}
		}
		return err
	})
}
