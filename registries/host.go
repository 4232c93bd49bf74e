package registries

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"lighter/sleep"
)

const (
	// maxHosts bounds the hosts of one table that are remembered. The least recently used ones are
	// forgotten, with their rests.
	maxHosts = 256
	// shortestRest and longestRest bound what a host's Retry-After says.
	shortestRest = time.Second
	longestRest  = time.Hour
)

// restBackoff has the rests of a host that answers 429 and does not say how long to wait.
var restBackoff = sleep.Backoff{First: 20 * time.Second, Most: 15 * time.Minute, Jitter: 0.5}

// RestError says that a registry has asked for a pause. Until then it gets no requests: they fail
// at once with this error.
type RestError struct {
	Host  string
	Until time.Time
}

func (e *RestError) Error() string {
	return fmt.Sprintf("%s has asked for a pause (429 or 503): it gets no requests until %s; "+
		"requests_per_second in its table [[registry]], or a login there, may avoid that", e.Host,
		e.Until.UTC().Format(time.RFC3339))
}

// RestsUntil returns when the host may be asked again.
func (e *RestError) RestsUntil() time.Time { return e.Until }

// host is the budget of a host, and its rest. All domains of a process share it.
type host struct {
	name      string              // HOST[:PORT]
	limiter   *rate.Limiter       // of requests
	transfers *semaphore.Weighted // of layers that are read at a time; nil: no limit
	probe     time.Duration       // how often it is asked while it rests; 0: never

	mu     sync.Mutex // guards the following
	until  time.Time  // it rests until then
	probed time.Time  // when it was last asked although it rests, or when its rest began
	pauses int        // that it has asked for, one after the other
}

// hostOf returns the host of a table with an address, HOST:PORT.
func (t *table) hostOf(address string) *host {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h, ok := t.hosts.Get(address); ok {
		return h
	}
	h := &host{name: address, limiter: rate.NewLimiter(rate.Inf, 1), probe: t.probe}
	if name, port, err := net.SplitHostPort(address); err == nil && port == "443" {
		h.name = name
	}
	if t.RequestsPerSecond > 0 {
		h.limiter = rate.NewLimiter(rate.Limit(t.RequestsPerSecond), max(1, int(t.RequestsPerSecond)))
	}
	if t.Connections > 0 {
		h.transfers = semaphore.NewWeighted(t.Connections)
	}
	t.hosts.Add(address, h)
	return h
}

// allow waits until the host's budget allows a request. It returns a RestError if the host rests,
// unless the request is a probe.
func (h *host) allow(ctx context.Context) (isProbe bool, err error) {
	if isProbe, err = h.rests(); err != nil {
		return false, err
	}
	if err := h.limiter.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return false, fmt.Errorf("too many requests wait for %s (requests_per_second): %w", h.name, err)
	}
	if isProbe {
		return true, nil
	}
	return h.rests()
}

// rests returns a RestError if the host rests and is not to be probed now.
func (h *host) rests() (isProbe bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case !now.Before(h.until):
		return false, nil
	case h.probe > 0 && !now.Before(h.probed.Add(h.probe)):
		h.probed = now
		return true, nil
	}
	return false, h.restError()
}

// restError returns the error of a host that rests. mu is held.
func (h *host) restError() error {
	until := h.until
	if next := h.probed.Add(h.probe); h.probe > 0 && next.Before(until) {
		until = next
	}
	return &RestError{h.name, until}
}

// note records what the host has answered. It returns a RestError if the host has to rest now, and
// whether this rest is a new one. A probe that is answered otherwise ends the rest.
func (h *host) note(res *http.Response, isProbe bool) (isNew bool, err error) {
	after := res.Header.Get("Retry-After")
	asks := res.StatusCode == http.StatusTooManyRequests ||
		res.StatusCode == http.StatusServiceUnavailable && after != ""
	h.mu.Lock()
	defer h.mu.Unlock()
	if !asks {
		if res.StatusCode < http.StatusInternalServerError {
			h.pauses = 0
			if isProbe {
				h.until = time.Time{}
			}
		}
		return false, nil
	}
	now := time.Now()
	if now.Before(h.until) && !isProbe { // another answer to requests of the same time
		return false, h.restError()
	}
	h.pauses++
	h.until, h.probed = now.Add(restOf(after, now, h.pauses)), now
	return true, h.restError()
}

// restOf returns the pause that a header Retry-After asks for.
func restOf(after string, now time.Time, pauses int) time.Duration {
	if seconds, err := strconv.ParseInt(after, 10, 64); err == nil {
		seconds = min(max(seconds, int64(shortestRest/time.Second)), int64(longestRest/time.Second))
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(after); err == nil {
		return min(max(at.Sub(now), shortestRest), longestRest)
	}
	return restBackoff.After(pauses)
}
