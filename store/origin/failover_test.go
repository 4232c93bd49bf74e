package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/wire/client"
)

var right = bytes.Repeat([]byte("the right bytes..\n"), 1000)

// fetchUnit fetches a unit and returns the origin that gave it.
func fetchUnit(t testing.TB, s *Failover, take func(length int64, body io.Reader) error) (from string, err error) {
	err = s.FetchUnit(t.Context(), chunk.Unit{}, func(a store.Answer) error {
		from = a.Origin
		return take(a.Length, a.Body)
	})
	return from, err
}

// takeRight rejects all but the right bytes.
func takeRight(length int64, body io.Reader) error {
	got, err := io.ReadAll(io.LimitReader(body, int64(2*len(right))))
	if err == nil && !bytes.Equal(got, right) {
		err = &chunk.InvalidError{What: "answer", Err: fmt.Errorf("%d bytes of %d", len(got), length)}
	}
	return err
}

func good(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(right) }

// over returns a Failover over the origins at some URLs.
func over(t *testing.T, urls ...string) *Failover {
	t.Helper()
	var options []client.Options
	for _, url := range urls {
		options = append(options, client.Options{URL: url, PlainHTTP: true})
	}
	f, err := New(slog.New(slog.DiscardHandler), options...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// origins returns a Failover, with short timeouts, over servers with some handlers.
func origins(t *testing.T, handlers ...http.HandlerFunc) *Failover {
	t.Helper()
	var urls []string
	for _, handler := range handlers {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	s := over(t, urls...)
	s.timeout = timeouts{stall: 200 * time.Millisecond, begin: 200 * time.Millisecond, last: 5 * time.Second,
		unit: time.Second, lookup: lookupTimeout}
	return s
}

// drip sends bytes one by one.
func drip(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		for len(b) > 0 && req.Context().Err() == nil {
			_, _ = w.Write(b[:1])
			_ = http.NewResponseController(w).Flush()
			b = b[1:]
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// An index whose stream is invalid is fetched from another origin.
func TestIndexFromAnotherOrigin(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := encoder.EncodeAll(right, nil)
	flipped := bytes.Clone(stored)
	flipped[len(flipped)/2] ^= 1
	send := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
	}
	stalled := func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(stored[:20])
		still(w, req)
	}
	s := origins(t, send(stored[:len(stored)-9]), send(flipped), send([]byte("<html>")),
		send(encoder.EncodeAll([]byte("another"), nil)), status(500), stalled, drip(stored), send(stored))
	err = s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error { return takeRight(-1, plain) })
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range s.Health() {
		if h.Up != (i == len(s.all)-1) || h.Requests != 1 {
			t.Errorf("origin %d: got %+v, want one request, and only the last origin up", i, h)
		}
	}
}

// A stream with a larger window than hubs use is not decompressed, because an origin must not
// decide how much memory that takes.
func TestWindowIsBounded(t *testing.T) {
	for _, window := range []int{8 << 20, 16 << 20} {
		var stored bytes.Buffer
		encoder, err := zstd.NewWriter(&stored, zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		_, err = encoder.Write(right)
		// Without the flush the window would be smaller.
		if err := errors.Join(err, encoder.Flush(), encoder.Close()); err != nil {
			t.Fatal(err)
		}
		s := origins(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(stored.Bytes()) })
		s.timeout.last = time.Minute
		take := func(plain io.Reader) error { return takeRight(-1, plain) }
		for what, err := range map[string]error{
			"index":     s.Index(t.Context(), chunk.ID{}, take),
			"locations": s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, take),
		} {
			if invalid := errors.As(err, new(*chunk.InvalidError)); invalid != (window > 8<<20) ||
				!invalid && err != nil {
				t.Errorf("%s with a window of %d bytes: got %v, want an InvalidError above 8 MiB, otherwise none",
					what, window, err)
			}
		}
	}
}

// Retry-After is honoured, up to a bound.
func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "100000": maxPause, "-1": 0, "soon": 0, "": 0, "99999999999999999999": 0,
		time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat): 20 * time.Second,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):       0,
	} {
		var asked atomic.Int32
		s := origins(t, func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			status(503, "Retry-After", text)(w, req)
		})
		for range 2 {
			var down *Unavailable
			_, err := fetchUnit(t, s, takeRight)
			if !errors.As(err, &down) || down.After > want || want > 0 && down.After < want/2 {
				t.Errorf("Retry-After %q: got %v, %+v; want a pause of about %s", text, err, down, want)
			}
		}
		if pauses := asked.Load() == 1; pauses != (want > 0) {
			t.Errorf("Retry-After %q: got %d requests, want one only if there is a pause", text, asked.Load())
		}
	}
}

// Silent origins share the caller's time. An origin that answers is still asked within that time.
func TestSilentOriginsShareTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, nil, nil, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := f.try(ctx, quick, func(ctx context.Context, o *origin, others int) error {
			ctx, cancel := share(ctx, others)
			defer cancel()
			if o == f.all[2] {
				return ctx.Err()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil || f.Health()[0].Up || f.Health()[1].Up {
			t.Errorf("got %v, %+v; want no error, and two origins that are down", err, f.Health())
		}
		silent := newFakes(t, nil)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			err = silent.try(ctx, quick, func(ctx context.Context, _ *origin, _ int) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if err == nil || silent.Health()[0].Up || silent.Health()[0].Requests != 1 {
				t.Errorf("after %s: got %v, %+v; want an error after one request",
					time.Since(start), err, silent.Health())
			}
		}
	})
}

// All requests that package store may send at a time can be in flight at the same time.
func TestConnectionsAreNotTheBottleneck(t *testing.T) {
	const n = 200
	var arrived sync.WaitGroup
	arrived.Add(n)
	s := origins(t, func(w http.ResponseWriter, req *http.Request) {
		arrived.Done()
		arrived.Wait()
		good(w, req)
	})
	s.timeout.last, s.timeout.unit = time.Minute, time.Minute // machines may be slow
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := fetchUnit(t, s, takeRight); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// An origin that fails to give locations stays up. Its Retry-After is honoured.
func TestLocationsAreAHint(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"500": status(500), "page": good,
		"stalls": func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			s := origins(t, fault)
			s.timeout.last = s.timeout.stall
			for range 3 {
				err := s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, func(plain io.Reader) error {
					_, err := io.ReadAll(plain)
					return err
				})
				if h := s.Health()[0]; err == nil || !h.Up || h.Failures == 0 {
					t.Errorf("got %v, health %+v; want an error, counted for an origin that is up", err, h)
				}
			}
		})
	}
	s := origins(t, status(503, "Retry-After", "20"))
	if err := s.Locations(t.Context(), chunk.ID{}, chunk.ID{}, nil); err == nil || s.all[0].busyFor() == 0 {
		t.Errorf("Retry-After: got %v and no pause, want an error and a pause", err)
	}
}
