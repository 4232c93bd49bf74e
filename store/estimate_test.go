package store

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// known is a path with an Estimate.
type known struct {
	*path
	seenRTT  time.Duration
	seenRate float64 // bytes a second
}

func (k known) Estimate(string) (time.Duration, float64) { return k.seenRTT, k.seenRate }

// A source's estimate saves a stream the startup. A wrong estimate costs little: its queue is not
// longer than in other startups.
func TestStreamWithPriorEstimate(t *testing.T) {
	const large, units = 200_000, 60
	unit, refs := encode(t, noise(large, 1))
	const rtt = 50 * time.Millisecond
	took := func(t *testing.T, mbit float64, seenRTT time.Duration, seenMbit float64) (took, ideal time.Duration,
		most int64) {
		synctest.Test(t, func(t *testing.T) {
			w := &path{rate: mbit * 1e6 / 8, rtt: rtt, asked: map[uint32]int{},
				answer: func(chunk.Unit) []byte { return unit }}
			u := NewFetcher(known{w, seenRTT, seenMbit * 1e6 / 8}, noCache{})
			stream := u.Share()
			var waits sync.WaitGroup
			begun := time.Now()
			for n := range units {
				wait, err := stream.Stream(t.Context(), at(refs[0], n), int64(len(unit)))
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, u.Stats().Link.InFlight)
				waits.Go(func() {
					if _, err := wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			waits.Wait()
			took, ideal = time.Since(begun), w.rtt+w.takes(units*len(unit))
		})
		return took, ideal, most
	}
	unknown, ideal, _ := took(t, 1000, 0, 0)
	if seen, _, _ := took(t, 1000, rtt, 900); seen > ideal*21/20 || seen+25*time.Millisecond > unknown {
		t.Errorf("with an estimate: got %v, want less than %v without, and about %v", seen, unknown, ideal)
	}
	for name, wrong := range map[string]struct {
		rtt  time.Duration
		mbit float64
	}{"slow": {rtt, 1}, "fast": {rtt, 1e6}, "near": {rtt / 100, 100}, "near and fast": {rtt / 100, 1e6},
		"far": {10 * rtt, 100}, "far and fast": {10 * rtt, 1e6}} {
		if took, ideal, most := took(t, 100, wrong.rtt, wrong.mbit); took > ideal*5/4 || most > maxStartupWindow+large {
			t.Errorf("100 Mbit/s estimated as %s: got %v, want about %v; %d bytes in flight", name, took, ideal, most)
		}
		if took, _, _ := took(t, 1000, wrong.rtt, wrong.mbit); took > unknown*13/10 {
			t.Errorf("1 Gbit/s estimated as %s: got %v, want about %v as without an estimate", name, took, unknown)
		}
	}
}

// Low rates count only while the window is full.
func TestLinkIsMeasuredWhenItIsFull(t *testing.T) {
	unit, refs := encode(t, noise(100_000, 1), noise(100_000, 2))
	synctest.Test(t, func(t *testing.T) {
		w := &path{rate: 100e6, rtt: 10 * time.Millisecond, asked: map[uint32]int{},
			answer: func(chunk.Unit) []byte { return unit }}
		u := NewFetcher(w, noCache{})
		s, n := u.Share(), 0
		stream := func(units int) {
			var waits sync.WaitGroup
			for range units {
				n++
				wait, err := s.Stream(t.Context(), at(refs[0], n), int64(len(unit)))
				if err != nil {
					t.Fatal(err)
				}
				waits.Go(func() {
					if _, err := wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			waits.Wait()
		}
		rate := func() float64 { return float64(u.Stats().Link.Rate) }
		stream(200)
		perRTT := s.BytesPerRTT(chunk.Unit{})
		if rate() < 0.9*w.rate || perRTT < int64(0.9*w.rate*w.rtt.Seconds()) {
			t.Errorf("got a rate of %.0f, and %d bytes per RTT; want nearly the link's", rate(), perRTT)
		}
		for range 1000 {
			n++
			if err := s.Read(t.Context(), at(refs[0], n), 0, make([]byte, 10), nil); err != nil {
				t.Fatal(err)
			}
		}
		if rate() < 0.9*w.rate {
			t.Errorf("while little is asked for: got a rate of %.0f, want nearly %.0f", rate(), w.rate)
		}
		w.mu.Lock()
		w.rate /= 10
		w.mu.Unlock()
		stream(300)
		if rate() > 1.2*w.rate {
			t.Errorf("after the link became slow: got a rate of %.0f, want about %.0f", rate(), w.rate)
		}
	})
}

// The window does not grow during a long stream: the stream's own queue does not count as a longer
// RTT.
func TestWindowDoesNotGrow(t *testing.T) {
	const large = 200_000
	unit, refs := encode(t, noise(large/2, 1), noise(large/2, 2))
	synctest.Test(t, func(t *testing.T) {
		w := &path{rate: 100e6 / 8, rtt: 10 * time.Millisecond, asked: map[uint32]int{},
			answer: func(chunk.Unit) []byte { return unit }}
		u := NewFetcher(w, noCache{})
		s := u.Share()
		var waits sync.WaitGroup
		for n := range 4000 { // 64 s
			wait, err := s.Stream(t.Context(), at(refs[0], n), large)
			if err != nil {
				t.Fatal(err)
			}
			waits.Go(func() {
				if _, err := wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		waits.Wait()
		if st := u.Stats().Link; st.RoundTrip > w.rtt*11/10 {
			t.Errorf("after a minute: got an RTT of %v, a window of %d bytes; want an RTT of about %v",
				st.RoundTrip, st.Window, w.rtt)
		}
		if used := w.used(100); used < 0.97 {
			t.Errorf("got %.3f of the link used, want at least 0.97", used)
		}
	})
}
