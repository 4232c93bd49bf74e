package origin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"lighter/sleep"
	"lighter/wire/client"
)

// backoff has the times for which an origin that failed is passed over. It has jitter, so that
// nodes that lost a hub at the same time do not return at the same time.
var backoff = sleep.Backoff{First: time.Second, Most: maxPause, Jitter: 0.5}

// Retry calls ask at most tries times, until it succeeds or returns an error that is not an
// *Unavailable.
func Retry(ctx context.Context, tries int, ask func() error) error {
	for failures := 1; ; failures++ {
		err := ask()
		var down *Unavailable
		if err == nil || failures >= tries || !errors.As(err, &down) {
			return err
		}
		if !sleep.For(ctx, max(backoff.After(failures), down.After)) {
			return context.Cause(ctx)
		}
	}
}

// breaker is the circuit breaker of one origin.
type breaker struct {
	url string
	log *slog.Logger

	requests, failed, bytes atomic.Int64

	mu       sync.Mutex // guards what follows
	down     bool
	since    time.Time // when down last changed
	failures int       // in a row
	again    time.Time // while down: when one request may probe the origin
	probing  bool      // a probe is in flight
	busy     time.Time // end of the origin's Retry-After
	answered time.Time // when it last answered
	err      error     // why it is down
}

// attempt is one request to an origin.
type attempt struct {
	began   time.Time
	isProbe bool
}

// begin starts a request, and reports whether it may be sent. No request is sent before the end of
// the origin's Retry-After. If the origin is down, a request is sent only if anyway is true, or as
// the single probe after a pause.
func (b *breaker) begin(anyway bool) (attempt, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := attempt{began: time.Now()}
	switch {
	case a.began.Before(b.busy):
		return a, false
	case !b.down || anyway:
		return a, true
	case b.probing || a.began.Before(b.again):
		return a, false
	}
	b.probing, a.isProbe = true, true
	return a, true
}

// isUp reports whether the origin is up and accepts requests now.
func (b *breaker) isUp() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.down && !time.Now().Before(b.busy)
}

// end ends a request. err is an error for which the origin is to blame, or nil. A hintError is
// counted and its Retry-After obeyed, but it does not make the origin count as down.
func (b *breaker) end(a attempt, err error) {
	b.requests.Add(1)
	if err != nil {
		b.failed.Add(1)
	}
	b.mu.Lock()
	wasDown, before := b.down, b.since
	b.update(a, err)
	down, since := b.down, b.since
	b.mu.Unlock() // writing the log may block
	switch {
	case down && !wasDown:
		b.log.Warn("hub is down", "hub", b.url, "err", err)
	case wasDown && !down:
		b.log.Info("hub is up again", "hub", b.url, "duration", since.Sub(before).Round(time.Millisecond))
	}
}

// update applies the end of a request; mu is held.
func (b *breaker) update(a attempt, err error) {
	if a.isProbe {
		b.probing = false
	}
	if err == nil {
		b.succeed()
		return
	}
	var answer *client.Error
	if errors.As(err, &answer) && answer.RetryAfter > 0 {
		b.busy = time.Now().Add(min(answer.RetryAfter, maxPause))
	}
	if errors.As(err, new(hintError)) {
		return
	}
	// If the origin has answered another request meanwhile, the failure is about the object.
	// Requests that fail at the same time count as one failure.
	if b.answered.After(a.began) || b.down && a.began.Before(b.since) {
		return
	}
	b.fail(err)
	if answer != nil && answer.RetryAfter > 0 {
		b.again = b.busy
	}
}

// abandon ends a request that says nothing about the origin.
func (b *breaker) abandon(a attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.isProbe {
		b.probing = false
	}
}

func (b *breaker) succeed() {
	b.answered = time.Now()
	if b.down {
		b.down, b.since = false, b.answered
	}
	b.failures, b.err = 0, nil
}

func (b *breaker) fail(err error) {
	now := time.Now()
	if !b.down {
		b.since = now
	}
	b.failures++
	b.down, b.again, b.err = true, now.Add(backoff.After(b.failures)), err
}

// busyFor returns how long until the end of the origin's Retry-After; 0: it has passed.
func (b *breaker) busyFor() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, time.Until(b.busy))
}

// skipped returns why the origin is not asked.
func (b *breaker) skipped() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.err
	if err == nil {
		err = errors.New("it answered with Retry-After")
	}
	return fmt.Errorf("hub %s is not asked for a while: %w", b.url, err)
}

// Health is what is known of one origin.
type Health struct {
	URL      string    `json:"url"`
	Up       bool      `json:"up"`
	Since    time.Time `json:"since,omitzero"` // when Up last changed
	Error    string    `json:"error,omitempty"`
	Requests int64     `json:"requests"`
	Failures int64     `json:"failures"`
	Bytes    int64     `json:"bytes"` // received: units, indexes, locations
}

func (b *breaker) health() Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := Health{URL: b.url, Up: !b.down, Since: b.since,
		Requests: b.requests.Load(), Failures: b.failed.Load(), Bytes: b.bytes.Load()}
	if b.err != nil {
		h.Error = b.err.Error()
	}
	return h
}
