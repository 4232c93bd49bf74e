package hub

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

// A large answer tells at what rate it came, never at more than its length within
// leastTook; small ones, and those of connections that are new, tell nothing.
func TestWhatAWayTells(t *testing.T) {
	trip := func(took time.Duration, reused bool) *roundTrip {
		r := &roundTrip{}
		r.took.Store(int64(took))
		r.reused.Store(reused)
		return r
	}
	var w way
	w.trip(trip(time.Second, false))
	w.trip(trip(0, true))
	w.came(leastLarge-1, time.Second)
	w.came(leastLarge, 0)
	if trip, rate := w.seen(); trip != 0 || rate != 0 || w.isLong() {
		t.Errorf("%v and %v", trip, rate)
	}
	w.trip(trip(50*time.Millisecond, true))
	w.trip(trip(40*time.Millisecond, true))
	w.trip(trip(60*time.Millisecond, true))
	w.came(1_000_000, 95*time.Millisecond)
	if trip, rate := w.seen(); trip != 40*time.Millisecond || rate != 1e7 || !w.isLong() {
		t.Errorf("%v and %v", trip, rate)
	}
	w.came(1_000_000, time.Nanosecond)
	if _, rate := w.seen(); rate > 1e6/leastTook.Seconds() {
		t.Errorf("%v", rate)
	}
}

// While an index comes over a long way connections are made for what follows it, and
// none over a short one.
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
		s := NewOrigins(slog.New(slog.DiscardHandler), c)
		read := func(plain io.Reader) error {
			_, err := io.Copy(io.Discard, plain)
			return err
		}
		for range 2 { // the first one has to connect
			if err := s.Index(t.Context(), chunk.ID{}, read); err != nil {
				t.Fatal(err)
			}
		}
		if long {
			await(t, "no connections are made", func() bool { return conns.taken.Load() >= 1+maxSpares })
		} else if trip, _ := s.Way(); trip < longTrip && conns.taken.Load() > 2 {
			t.Errorf("%d connections over a way of %v", conns.taken.Load(), trip)
		}
	}
}
