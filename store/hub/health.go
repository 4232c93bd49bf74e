package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstPause and maxPause bound how long an origin that failed is passed
	// over: the pause doubles, and an origin that answers has all forgiven.
	// maxPause also bounds how long one can ask to be left alone.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// origin is a hub, or a mirror of one, and what was seen of it.
type origin struct {
	client *Client
	log    *slog.Logger

	requests, failed, received atomic.Int64

	mu       sync.Mutex // guards what follows
	down     bool
	since    time.Time // when down became what it is
	failures int       // in a row
	again    time.Time // while down: when it is asked again although others are up
	probing  bool      // somebody does
	busy     time.Time // it wants to be left alone until then
	answered time.Time // when it answered last
	err      error     // why it is down
}

// attempt is one request to an origin.
type attempt struct {
	began time.Time
	probe bool
}

// begin tells whether the origin may be asked. If it is down, then once after
// each pause, or anyway.
func (o *origin) begin(anyway bool) (attempt, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := attempt{began: time.Now()}
	switch {
	case a.began.Before(o.busy):
		return a, false
	case !o.down || anyway:
		return a, true
	case o.probing || a.began.Before(o.again):
		return a, false
	}
	o.probing, a.probe = true, true
	return a, true
}

// isUp tells whether the origin would be asked before others are.
func (o *origin) isUp() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.down && !time.Now().Before(o.busy)
}

// end says how an attempt ended. An error is one that the origin is to blame for;
// one about a hint is counted, and says nothing about the origin.
func (o *origin) end(a attempt, err error) {
	o.requests.Add(1)
	if err != nil {
		o.failed.Add(1)
	}
	o.mu.Lock()
	wasDown, before := o.down, o.since
	o.learn(a, err)
	down, since := o.down, o.since
	o.mu.Unlock() // a log may take its time
	switch {
	case down && !wasDown:
		o.log.Warn("a hub fails; others are asked first", "hub", o.client.URL(), "cause", err)
	case wasDown && !down:
		o.log.Info("a hub is back", "hub", o.client.URL(), "after", since.Sub(before).Round(time.Millisecond))
	}
}

// learn notes how an attempt ended; mu is held.
func (o *origin) learn(a attempt, err error) {
	if a.probe {
		o.probing = false
	}
	if err == nil {
		o.answer()
		return
	}
	var said *Error
	if errors.As(err, &said) && said.RetryAfter > 0 {
		o.busy = time.Now().Add(min(said.RetryAfter, maxPause))
	}
	if errors.As(err, new(hintError)) {
		return
	}
	// While it answers others the failure is not its own, but that of what it was
	// asked for. And requests that fail together are one failure.
	if o.answered.After(a.began) || o.down && a.began.Before(o.since) {
		return
	}
	o.fail(err)
	if said != nil && said.RetryAfter > 0 {
		o.again = o.busy // it says itself when
	}
}

// giveUp ends an attempt of which nothing is to be learned.
func (o *origin) giveUp(a attempt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.probe {
		o.probing = false
	}
}

func (o *origin) answer() {
	o.answered = time.Now()
	if o.down {
		o.down, o.since = false, o.answered
	}
	o.failures, o.err = 0, nil
}

func (o *origin) fail(err error) {
	now := time.Now()
	if !o.down {
		o.since = now
	}
	pause := min(firstPause<<min(o.failures, 10), maxPause)
	pause = pause/2 + rand.N(pause/2) // nodes that lost a hub together do not come back together
	o.failures++
	o.down, o.again, o.err = true, now.Add(pause), err
}

// wait returns how long the origin wants to be left alone.
func (o *origin) wait() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(0, time.Until(o.busy))
}

// leftAlone says why the origin is not asked.
func (o *origin) leftAlone() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	why := o.err
	if why == nil {
		why = errors.New("it asked to be left alone")
	}
	return fmt.Errorf("hub %s is left alone for a while: %w", o.client.URL(), why)
}

// Health is what was seen of one hub.
type Health struct {
	URL      string    `json:"url"`
	Up       bool      `json:"up"`
	Since    time.Time `json:"since,omitzero"` // when it went down, or came back
	Error    string    `json:"error,omitempty"`
	Requests int64     `json:"requests"`
	Failures int64     `json:"failures"`
	Bytes    int64     `json:"bytes"` // received: units, indexes, locations
}

func (o *origin) health() Health {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := Health{URL: o.client.URL(), Up: !o.down, Since: o.since,
		Requests: o.requests.Load(), Failures: o.failed.Load(), Bytes: o.received.Load()}
	if o.err != nil {
		h.Error = o.err.Error()
	}
	return h
}
