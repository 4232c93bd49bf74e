package store

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// Trip measures one HTTP request of a source, for Answer.RoundTrip and Answer.Reused.
type Trip struct {
	began       time.Time
	sent, first atomic.Int64 // nanoseconds since began; 0: not yet
	reused      atomic.Bool
}

// Timed returns a context whose request is measured.
func Timed(ctx context.Context) (context.Context, *Trip) {
	t := &Trip{began: time.Now()}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { t.reused.Store(i.Reused) },
		WroteRequest:         func(httptrace.WroteRequestInfo) { t.sent.Store(int64(time.Since(t.began))) },
		GotFirstResponseByte: func() { t.first.Store(int64(time.Since(t.began))) },
	}), t
}

// Duration returns the time from the end of the request to the answer's first byte; -1: not known.
func (t *Trip) Duration() time.Duration {
	sent, first := t.sent.Load(), t.first.Load()
	if sent == 0 || first < sent {
		return -1
	}
	return time.Duration(first - sent)
}

// Reused reports whether the connection had carried a request before.
func (t *Trip) Reused() bool { return t.reused.Load() }
