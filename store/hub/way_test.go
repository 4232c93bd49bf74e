package hub

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

// A large answer tells at what rate it came, never at more than its length within
// leastTook; small ones tell nothing. The shortest first byte counts for a while.
func TestWhatAWayTells(t *testing.T) {
	var w way
	w.trip(0)
	w.came(leastLarge-1, time.Second)
	w.came(leastLarge, 0)
	if trip, rate := w.seen(); trip != 0 || rate != 0 {
		t.Errorf("%v and %v", trip, rate)
	}
	w.trip(50 * time.Millisecond)
	w.trip(40 * time.Millisecond)
	w.trip(60 * time.Millisecond)
	w.came(1_000_000, 95*time.Millisecond)
	if trip, rate := w.seen(); trip != 40*time.Millisecond || rate != 1e7 {
		t.Errorf("%v and %v", trip, rate)
	}
	w.at = w.at.Add(-2 * tripTime)
	if w.trip(60 * time.Millisecond); w.shortest != 60*time.Millisecond {
		t.Errorf("%v was the shortest long ago", w.shortest)
	}
	w.came(1_000_000, time.Nanosecond)
	if _, rate := w.seen(); rate > 1e6/leastTook.Seconds() {
		t.Errorf("%v", rate)
	}
}

// As many connections are worth making as a start has use for, and none over a short way.
func TestConnectionsOfAStart(t *testing.T) {
	for _, c := range []struct {
		trip time.Duration
		rate float64
		want int
	}{
		{0, 1e8, 0},
		{longTrip - 1, 1e9, 0},
		{50 * time.Millisecond, 0, 0},
		{50 * time.Millisecond, 6e5, 0},
		{100 * time.Millisecond, 1e6, 2},
		{10 * time.Millisecond, 1e8, 22},
	} {
		if got := (&way{shortest: c.trip, rate: c.rate}).connections(); got != c.want {
			t.Errorf("%v, %.0f bytes a second: %d connections, not %d", c.trip, c.rate, got, c.want)
		}
	}
}

// While an index comes over a long way connections are made for what follows it, and again
// if they have expired; none over a short one, nor by who copies.
func TestConnectionsAreMadeBesideAnIndex(t *testing.T) {
	random := make([]byte, 8*leastLarge)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	for name, c := range map[string]struct{ long, copies bool }{
		"long":     {long: true},
		"short":    {},
		"a mirror": {long: true, copies: true},
	} {
		var conns counted
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		index := encoder.EncodeAll(random, nil)
		server := conns.server(t)
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c.long {
				time.Sleep(2 * longTrip)
			}
			_, _ = w.Write(index)
		})
		client := clientOf(t, Options{URL: server.URL, Copies: c.copies})
		d := &client.dialer
		d.time = time.Hour
		if !c.long { // however slow this machine is
			client.way.shortest, client.way.at = time.Microsecond, time.Now()
		}
		s := NewOrigins(slog.New(slog.DiscardHandler), client)
		if err := s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			for part := range 2 {
				if _, err := io.CopyN(io.Discard, plain, int64(len(random)/2)); err != nil {
					return err
				}
				await(t, "they are not made", func() bool {
					d.mu.Lock()
					defer d.mu.Unlock()
					return d.making == 0
				})
				d.mu.Lock()
				made := slices.Clone(d.spares)
				d.mu.Unlock()
				if n := len(made); n > maxSpares || (n > 0) != (c.long && !c.copies) {
					t.Errorf("%s: %d connections beside part %d of the index", name, n, part)
				}
				for _, s := range made {
					d.expire(s)
				}
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of the way to a hub its look-ups and indexes tell, and none of its errors.
func TestOriginsTellTheWay(t *testing.T) {
	const late = 2 * longTrip
	plain := make([]byte, 4*leastLarge)
	_, _ = rand.NewChaCha8([32]byte{}).Read(plain)
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	index := encoder.EncodeAll(plain, nil)
	var conns counted
	server := conns.server(t)
	broken := true
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken:
			http.Error(w, "broken", http.StatusServiceUnavailable)
		case strings.Contains(r.URL.Path, "/chains/"):
			time.Sleep(late)
			http.NotFound(w, r)
		default:
			time.Sleep(2 * late)
			_, _ = w.Write(index[:len(index)/2])
			time.Sleep(late)
			_, _ = w.Write(index[len(index)/2:])
		}
	})
	c := clientOf(t, Options{URL: server.URL})
	if _, err := c.Chain(t.Context(), "sha256:broken"); err == nil || errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a broken hub says %v", err)
	}
	if trip, rate := c.way.seen(); trip != 0 || rate != 0 {
		t.Errorf("of an error %v and %v are known", trip, rate)
	}
	broken = false
	s := NewOrigins(slog.New(slog.DiscardHandler), c)
	var told interface { // as store asks for it
		Way() (roundTrip time.Duration, rate float64)
	} = s
	if _, err := s.Chain(t.Context(), "sha256:unknown"); !errors.Is(err, chunk.ErrNotFound) {
		t.Error(err)
	}
	looked, rate := told.Way()
	if looked < late || rate != 0 {
		t.Errorf("of a look-up %v and %v are known", looked, rate)
	}
	if err := s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
		_, err := io.Copy(io.Discard, plain)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if trip, rate := told.Way(); trip > looked || rate <= 0 || rate > float64(len(index))/late.Seconds() {
		t.Errorf("of a look-up of %v and an index %v and %v are known", looked, trip, rate)
	}
}
