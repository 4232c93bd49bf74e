package origin

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/wire"
	"lighter/wire/client"
)

// The lowest round-trip time and the highest bandwidth are kept for a while.
func TestEstimate(t *testing.T) {
	var p path
	expect := func(wantRTT time.Duration, wantBandwidth float64) {
		t.Helper()
		if rtt, bandwidth := p.estimate(); rtt != wantRTT || bandwidth != wantBandwidth {
			t.Errorf("got %v and %v, want %v and %v", rtt, bandwidth, wantRTT, wantBandwidth)
		}
	}
	p.addRoundTrip(0)
	expect(0, 0)
	for _, rtt := range []time.Duration{50, 40, 60} {
		p.addRoundTrip(rtt * time.Millisecond)
	}
	for _, bandwidth := range []float64{1e6, 1e7, 1e6} {
		p.addBandwidth(bandwidth)
	}
	expect(40*time.Millisecond, 1e7)
	p.bandwidthAt = p.bandwidthAt.Add(-bandwidthTime)
	expect(40*time.Millisecond, 0)
	p.rttAt, p.bandwidthAt = p.rttAt.Add(-2*pathTime), p.bandwidthAt.Add(-2*pathTime)
	p.addRoundTrip(60 * time.Millisecond)
	p.addBandwidth(1e6)
	expect(60*time.Millisecond, 1e6)
}

// The bandwidth is measured in an answer's bursts, without TCP's slow start. In an answer without
// bursts it is measured in the last half. maxGap is added to the time of a burst, and a small
// answer does not count.
func TestBandwidth(t *testing.T) {
	const packet = 1448
	for name, c := range map[string]struct {
		bytes       int
		mbit        float64
		trip        time.Duration
		least, most float64 // bytes a second
	}{
		"small":              {bytes: minBurst - packet, mbit: 100},
		"100 Mbit/s, 10 ms":  {1_200_000, 100, 10 * time.Millisecond, 11e6, 12.5e6},
		"1 Gbit/s, 50 ms":    {500_000, 1000, 50 * time.Millisecond, 25e6, 125e6},
		"10 Mbit/s, 50 ms":   {1_000_000, 10, 50 * time.Millisecond, 1.2e6, 1.25e6},
		"1 Mbit/s, 50 ms":    {300_000, 1, 50 * time.Millisecond, 120e3, 125e3},
		"small, 1 Mbit/s":    {bytes: 250_000, mbit: 1},
		"TCP has only begun": {300_000, 1000, 50 * time.Millisecond, 1.7e6, 2.2e6}, // all of it: 1.2e6
		"all at once, 20 ms": {250_000, 1e6, 20 * time.Millisecond, 0, 250_000 / maxGap.Seconds()},
	} {
		synctest.Test(t, func(t *testing.T) {
			var p path
			a := transfer{path: &p}
			window, left := 10, 0
			for sent := 0; sent < c.bytes; sent += packet {
				if left == 0 { // a round trip later the window is twice as large
					in := time.Duration(float64(window*packet*8) / c.mbit * float64(time.Microsecond))
					if sent > 0 && in < c.trip {
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
			if _, got := p.estimate(); got < c.least || got > c.most {
				t.Errorf("%s: %.0f bytes a second, want %.0f to %.0f", name, got, c.least, c.most)
			}
		})
	}
}

// incompressible returns a zstd stream of that many plain bytes, which is about as long.
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

// While an index arrives over a long path, spares are opened for the requests that follow, and
// opened again if they have expired when the index is complete. None are opened over a short path,
// or by a mirror.
func TestSparesBesideAnIndex(t *testing.T) {
	index := incompressible(t, 8*minBurst)
	for name, c := range map[string]struct {
		long, copies, cutOff bool
		during, after        bool
	}{
		"long":     {long: true, during: true, after: true},
		"short":    {},
		"a mirror": {long: true, copies: true},
		"cut off":  {long: true, cutOff: true, during: true},
	} {
		var conns counted
		server := conns.server(t)
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c.long {
				time.Sleep(2 * longRTT)
			}
			_, _ = w.Write(index)
		})
		options := client.Options{URL: server.URL}
		if c.copies {
			options.Header = http.Header{wire.CopyHeader: {"1"}}
		}
		f, err := New(slog.New(slog.DiscardHandler), options)
		if err != nil {
			t.Fatal(err)
		}
		d := &f.all[0].dialer
		d.spareTime = time.Hour
		if !c.long { // however slow this machine is
			f.all[0].path.rtt, f.all[0].path.rttAt = time.Microsecond, time.Now()
		}
		count := func(when string, some bool) {
			await(t, "the spares are not open", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.opening == 0
			})
			d.mu.Lock()
			spares := slices.Clone(d.spares)
			d.mu.Unlock()
			if n := len(spares); some != (n == startSpares) || !some && n > 0 {
				t.Errorf("%s: %d spares %s the index, want some: %v", name, n, when, some)
			}
			for _, s := range spares {
				d.expire(s)
			}
		}
		if err := f.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			if _, err := io.Copy(io.Discard, plain); err != nil {
				t.Error(err)
			}
			count("during", c.during)
			if c.cutOff {
				return errors.New("cut off")
			}
			return nil
		}); (err != nil) != c.cutOff {
			t.Errorf("%s: got %v, want an error: %t", name, err, c.cutOff)
		}
		count("after", c.after)
	}
}

// Lookups and indexes measure the path, errors do not.
func TestPathIsMeasured(t *testing.T) {
	const late = 2 * longRTT
	index := incompressible(t, 8*minBurst)
	var conns counted
	server := conns.server(t)
	var broken atomic.Bool
	broken.Store(true)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken.Load():
			http.Error(w, "broken", http.StatusBadRequest)
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
	f := over(t, server.URL)
	if _, err := f.Chain(t.Context(), "sha256:broken"); err == nil || errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a broken hub: got %v, want an error other than ErrNotFound", err)
	}
	if rtt, bandwidth := f.Estimate(""); rtt != 0 || bandwidth != 0 {
		t.Errorf("after an error: %v and %v, want nothing", rtt, bandwidth)
	}
	broken.Store(false)
	if _, err := f.Chain(t.Context(), "sha256:unknown"); !errors.Is(err, chunk.ErrNotFound) {
		t.Error(err)
	}
	lookup, bandwidth := f.Estimate("")
	if lookup < late || bandwidth != 0 {
		t.Errorf("after a lookup: %v and %v, want at least %v and 0", lookup, bandwidth, late)
	}
	if err := f.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
		_, err := io.Copy(io.Discard, plain)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	most := float64(len(index)) / maxGap.Seconds()
	if rtt, bandwidth := f.Estimate(""); rtt > lookup || bandwidth <= 0 || bandwidth > most {
		t.Errorf("after a lookup of %v and an index: got %v and %v, want at most %v for the bandwidth",
			lookup, rtt, bandwidth, most)
	}
}

// An answer without bursts measures the bandwidth, too, if it is complete.
func TestSlowAnswerMeasuresTheBandwidth(t *testing.T) {
	const piece, pause = 8 << 10, 25 * time.Millisecond
	index := incompressible(t, minTransfer+2*piece)
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
		f := over(t, server.URL)
		if err := f.Index(t.Context(), chunk.ID{}, func(plain io.Reader) error {
			_, err := io.Copy(io.Discard, plain)
			return errors.Join(err, want)
		}); !errors.Is(err, want) {
			t.Fatal(err)
		}
		if _, bandwidth := f.Estimate(""); bandwidth > 0 != (want == nil) {
			t.Errorf("after an answer that ended with %v: %v bytes a second", want, bandwidth)
		}
	}
}
