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
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

// The shortest first byte and the highest rate count for a while.
func TestWhatAWayTells(t *testing.T) {
	var w way
	w.trip(0)
	if trip, rate := w.seen(); trip != 0 || rate != 0 {
		t.Errorf("%v and %v", trip, rate)
	}
	w.trip(50 * time.Millisecond)
	w.trip(40 * time.Millisecond)
	w.trip(60 * time.Millisecond)
	w.came(1e6)
	w.came(1e7)
	w.came(1e6)
	if trip, rate := w.seen(); trip != 40*time.Millisecond || rate != 1e7 {
		t.Errorf("%v and %v", trip, rate)
	}
	w.rateAt = w.rateAt.Add(-rateTime)
	if _, rate := w.seen(); rate != 0 {
		t.Errorf("%v, and that was long ago", rate)
	}
	w.at, w.rateAt = w.at.Add(-2*wayTime), w.rateAt.Add(-2*wayTime)
	w.trip(60 * time.Millisecond)
	w.came(1e6)
	if trip, rate := w.seen(); trip != 60*time.Millisecond || rate != 1e6 {
		t.Errorf("%v and %v, and others were long ago", trip, rate)
	}
}

// How fast an answer comes is seen of its bursts, not of its waiting for TCP to begin, and
// where it has none of what comes last; what comes all at once counts as leastTook, and what is small not at all.
func TestHowFastAnAnswerComes(t *testing.T) {
	const packet = 1448
	for name, c := range map[string]struct {
		bytes       int
		mbit        float64
		trip        time.Duration
		least, most float64 // bytes a second
	}{
		"small":              {bytes: leastBurst - packet, mbit: 100},
		"100 Mbit/s, 10 ms":  {1_200_000, 100, 10 * time.Millisecond, 11e6, 12.5e6},
		"1 Gbit/s, 50 ms":    {500_000, 1000, 50 * time.Millisecond, 25e6, 125e6},
		"10 Mbit/s, 50 ms":   {1_000_000, 10, 50 * time.Millisecond, 1.2e6, 1.25e6},
		"1 Mbit/s, 50 ms":    {300_000, 1, 50 * time.Millisecond, 120e3, 125e3},
		"small, 1 Mbit/s":    {bytes: 250_000, mbit: 1},
		"TCP has only begun": {300_000, 1000, 50 * time.Millisecond, 1.7e6, 2.2e6}, // all of it: 1.2e6
		"all at once, 20 ms": {250_000, 1e6, 20 * time.Millisecond, 0, 250_000 / leastTook.Seconds()},
	} {
		synctest.Test(t, func(t *testing.T) {
			var w way
			a := arrival{way: &w}
			window, left := 10, 0
			for sent := 0; sent < c.bytes; sent += packet {
				if left == 0 { // a round trip later there is twice as much
					if in := time.Duration(float64(window*packet*8) / c.mbit * float64(time.Microsecond)); sent > 0 && in < c.trip {
						time.Sleep(c.trip - in/2)
					}
					left, window = window, 2*window
				}
				time.Sleep(time.Duration(packet * 8 / c.mbit * float64(time.Microsecond)))
				a.add(packet)
				left--
			}
			a.add(0)
			a.end()
			if _, rate := w.seen(); rate < c.least || rate > c.most {
				t.Errorf("%s: %.0f bytes a second", name, rate)
			}
		})
	}
}

// incompressible returns a zstd stream of so many bytes, which is as long.
func incompressible(t *testing.T, size int) []byte {
	t.Helper()
	plain := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(plain)
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return encoder.EncodeAll(plain, nil)
}

// While an index comes over a long way connections are made for what follows it, and once
// more if they have expired when it has come, but not if it has not; none over a short way,
// nor by who copies.
func TestConnectionsAreMadeBesideAnIndex(t *testing.T) {
	index := incompressible(t, 8*leastBurst)
	for name, c := range map[string]struct {
		long, copies, cutOff bool
		beside, behind       bool
	}{
		"long":     {long: true, beside: true, behind: true},
		"short":    {},
		"a mirror": {long: true, copies: true},
		"cut off":  {long: true, cutOff: true, beside: true},
	} {
		var conns counted
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
		count := func(when string, some bool) {
			await(t, "they are not made", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.making == 0
			})
			d.mu.Lock()
			made := slices.Clone(d.spares)
			d.mu.Unlock()
			if n := len(made); some != (n == startSpares) || !some && n > 0 {
				t.Errorf("%s: %d connections %s the index", name, n, when)
			}
			for _, s := range made {
				d.expire(s)
			}
		}
		s := NewOrigins(slog.New(slog.DiscardHandler), client)
		if err := s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			if _, err := io.Copy(io.Discard, plain); err != nil {
				t.Error(err)
			}
			count("beside", c.beside)
			if c.cutOff {
				return errors.New("it was cut off")
			}
			return nil
		}); (err != nil) != c.cutOff {
			t.Errorf("%s: %v", name, err)
		}
		count("behind", c.behind)
	}
}

// Of the way to a hub its look-ups and indexes tell, and none of its errors.
func TestOriginsTellTheWay(t *testing.T) {
	const late = 2 * longTrip
	index := incompressible(t, 8*leastBurst)
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
	if _, err := s.Chain(t.Context(), "sha256:unknown"); !errors.Is(err, chunk.ErrNotFound) {
		t.Error(err)
	}
	looked, rate := s.Estimate()
	if looked < late || rate != 0 {
		t.Errorf("of a look-up %v and %v are known", looked, rate)
	}
	if err := s.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
		_, err := io.Copy(io.Discard, plain)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if trip, rate := s.Estimate(); trip > looked || rate <= 0 || rate > float64(len(index))/leastTook.Seconds() {
		t.Errorf("of a look-up of %v and an index %v and %v are known", looked, trip, rate)
	}
}

// An answer that comes in dribbles tells the way, too, if all of it comes.
func TestDribblesTellTheWay(t *testing.T) {
	const piece, pause = 8 << 10, 25 * time.Millisecond
	index := incompressible(t, leastWhole+2*piece)
	var conns counted
	server := conns.server(t)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for part := range slices.Chunk(index, piece) {
			_, _ = w.Write(part)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(pause)
		}
	})
	refused := errors.New("refused")
	for _, want := range []error{refused, nil} {
		c := clientOf(t, Options{URL: server.URL})
		if err := NewOrigins(slog.New(slog.DiscardHandler), c).Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			_, err := io.Copy(io.Discard, plain)
			return errors.Join(err, want)
		}); !errors.Is(err, want) {
			t.Fatal(err)
		}
		if _, rate := c.way.seen(); rate > 0 != (want == nil) {
			t.Errorf("of an answer with which it said %v: %v bytes a second", want, rate)
		}
	}
}
