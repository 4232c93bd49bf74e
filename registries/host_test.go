package registries

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A host that answers 429, or 503 with Retry-After, rests: it gets no requests, and these fail at
// once. Other hosts are not affected. After the rest it is asked again.
func TestRest(t *testing.T) {
	t.Parallel()
	for status, after := range map[int]string{http.StatusTooManyRequests: "", http.StatusServiceUnavailable: "600"} {
		f, other := startFake(t), startFake(t)
		r := open(t, Registry{Host: f.host, Private: true, Logins: loginFile(t, f.host, secret)},
			Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, other.host, secret)})
		s, sOther := source(t, r, f.host+"/a"), source(t, r, other.host+"/a")
		requests := 0
		f.with(func() {
			f.answer = func(w http.ResponseWriter) bool {
				requests++
				w.Header().Set("Retry-After", after)
				w.WriteHeader(status)
				return true
			}
		})
		for _, try := range []func() error{
			func() error { return has(t, s) },
			func() error { return has(t, s) },
			func() error { _, err := logIn(t, r, f.host+"/other"); return err },
		} {
			var rest *RestError
			if err := try(); !errors.As(err, &rest) || rest.Host != f.host || !rest.Until.After(time.Now()) {
				t.Errorf("%d: error %v, want a RestError of %s", status, err, f.host)
			}
		}
		if requests != 1 {
			t.Errorf("%d: %d requests, want 1", status, requests)
		}
		if err := has(t, sOther); err != nil {
			t.Errorf("%d: another host: %v", status, err)
		}
		f.with(func() { f.answer = nil })
		h := r.tableOf(f.host).hostOf(f.host)
		h.mu.Lock()
		h.until = time.Now().Add(-time.Second)
		h.mu.Unlock()
		if err := has(t, s); err != nil {
			t.Errorf("%d: after the rest: %v", status, err)
		}
	}
}

// A host decides how long it rests, within bounds.
func TestLengthOfRests(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for after, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0": shortestRest, "-5": shortestRest, "999999999999": longestRest,
		now.Add(time.Minute).UTC().Format(http.TimeFormat):    time.Minute,
		now.Add(-time.Hour).UTC().Format(http.TimeFormat):     shortestRest,
		now.Add(24 * time.Hour).UTC().Format(http.TimeFormat): longestRest,
	} {
		if got := restOf(after, now, 1); got.Round(2*time.Second) != want.Round(2*time.Second) {
			t.Errorf("Retry-After %q: %v, want %v", after, got, want)
		}
	}
	for _, after := range []string{"", "soon", "1e9"} {
		first, later := restOf(after, now, 1), restOf(after, now, 100)
		jittered := func(d, most time.Duration) bool { return d >= most/2 && d <= most }
		if !jittered(first, restBackoff.First) || !jittered(later, restBackoff.Most) {
			t.Errorf("Retry-After %q: %v and later %v, want %v and %v less the jitter", after, first, later,
				restBackoff.First, restBackoff.Most)
		}
	}
}

// With Probe, a host that rests gets one request in each such time, however many are wanted. Its
// rest ends with the first answer that asks for no pause.
func TestProbe(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, f.host, secret)})
	const every = 200 * time.Millisecond
	r.Probe(every)
	s := source(t, r, f.host+"/a")
	requests := 0
	f.with(func() {
		f.answer = func(w http.ResponseWriter) bool {
			requests++
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
	})
	began := time.Now()
	for time.Since(began) < 3*every {
		var rest *RestError
		if err := has(t, s); !errors.As(err, &rest) || time.Until(rest.Until) > every {
			t.Fatalf("error %v, want one that says when the host is asked again", err)
		}
		time.Sleep(time.Millisecond)
	}
	if most := 1 + int(time.Since(began)/every); requests < 2 || requests > most {
		t.Errorf("%d requests, want 2 to %d", requests, most)
	}
	f.with(func() { f.answer = nil })
	time.Sleep(every)
	for range 3 {
		if err := has(t, s); err != nil {
			t.Errorf("after the rest: %v", err)
		}
	}
}

// A host gets no more requests than its table allows.
func TestBudget(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := open(t, Registry{Host: f.host, Private: true, RequestsPerSecond: 0.001})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	s, err := r.RegistrySession(f.host, "", false)
	if err != nil {
		t.Fatal(err)
	}
	err = s.LogIn(ctx)
	if err == nil { // the table allows one request, which was the one without TLS
		req, newErr := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.host+"/v2/", nil)
		if newErr != nil {
			t.Fatal(newErr)
		}
		_, err = s.RoundTrip(req)
	}
	if err == nil || !strings.Contains(err.Error(), "requests_per_second") {
		t.Errorf("two requests at once: error %v, want one about requests_per_second", err)
	}
}

// counter is an observer that counts.
type counter struct {
	mu              sync.Mutex
	requests, rests map[string]int // by table, and status
}

func (c *counter) Requested(host string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[fmt.Sprint(host, " ", status)]++
}

func (c *counter) Rests(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rests[host]++
}

// The observer learns of each request with its status, and of each rest once, by table.
func TestObserver(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.basic = true
	c := &counter{requests: map[string]int{}, rests: map[string]int{}}
	r, err := New([]Registry{{Host: "127.0.0.1", Private: true}}, slog.New(slog.DiscardHandler), c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := source(t, r, f.host+"/a") // one request, without a login
	f.with(func() {
		f.answer = func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusTooManyRequests); return true }
	})
	for range 3 {
		if err := has(t, s); !errors.As(err, new(*RestError)) {
			t.Errorf("error %v, want a RestError", err)
		}
	}
	if c.requests["127.0.0.1 401"] != 1 || c.requests["127.0.0.1 429"] != 1 || c.rests["127.0.0.1"] != 1 {
		t.Errorf("observed %v and rests %v, want one of each", c.requests, c.rests)
	}
}
