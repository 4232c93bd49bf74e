package hub

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"slices"
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
	if trip, rate := w.seen(); trip != 0 || rate != 0 || w.isLong() {
		t.Errorf("%v and %v", trip, rate)
	}
	w.trip(50 * time.Millisecond)
	w.trip(40 * time.Millisecond)
	w.trip(60 * time.Millisecond)
	w.came(1_000_000, 95*time.Millisecond)
	if trip, rate := w.seen(); trip != 40*time.Millisecond || rate != 1e7 || !w.isLong() {
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

// While an index comes over a long way connections are made for what follows it, and
// none over a short one. They are made again if they have expired when it ends.
func TestConnectionsAreMadeBesideAnIndex(t *testing.T) {
	for _, long := range []bool{false, true} {
		var conns counted
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		index := encoder.EncodeAll(bytes.Repeat([]byte("index"), 1000), nil)
		server := conns.server(t)
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if long {
				time.Sleep(2 * longTrip)
			}
			_, _ = w.Write(index)
		})
		c := clientOf(t, Options{URL: server.URL})
		c.dialer.time = time.Hour
		spares := func() int {
			c.dialer.mu.Lock()
			defer c.dialer.mu.Unlock()
			return len(c.dialer.spares) + c.dialer.making
		}
		if !long { // however slow this machine is
			c.way.shortest, c.way.at = time.Microsecond, time.Now()
		}
		want := map[bool]int{true: maxSpares}[long]
		s := NewOrigins(slog.New(slog.DiscardHandler), c)
		if err := s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			if n := spares(); n != want {
				t.Errorf("%d connections beside the index, not %d", n, want)
			}
			await(t, "they are not made", func() bool {
				c.dialer.mu.Lock()
				defer c.dialer.mu.Unlock()
				return c.dialer.making == 0
			})
			c.dialer.mu.Lock()
			made := slices.Clone(c.dialer.spares)
			c.dialer.mu.Unlock()
			for _, s := range made {
				c.dialer.expire(s)
			}
			_, err := io.Copy(io.Discard, plain)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n := spares(); n != want {
			t.Errorf("%d connections after the index, not %d", n, want)
		}
	}
}
