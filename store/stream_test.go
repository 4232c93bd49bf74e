package store

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// A stream fills a link of any RTT. A fault meanwhile is delayed by at most the transfer time of
// one unit and the smallest window, plus half an RTT.
func TestStreamFillsTheLink(t *testing.T) {
	const large, small = 200_000, 40_000
	unit, refs := encode(t, noise(large/2, 1), noise(large/2, 2))
	wanted, faults := encode(t, noise(small, 3))
	for name, link := range map[string]struct {
		mbit  float64
		rtt   time.Duration
		units int
	}{
		"1 Gbit/s, 0.5 ms":  {1000, 500 * time.Microsecond, 300},
		"1 Gbit/s, 10 ms":   {1000, 10 * time.Millisecond, 400},
		"1 Gbit/s, 50 ms":   {1000, 50 * time.Millisecond, 800},
		"100 Mbit/s, 10 ms": {100, 10 * time.Millisecond, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &path{rate: link.mbit * 1e6 / 8, rtt: link.rtt, asked: map[uint32]int{}}
				w.answer = func(u chunk.Unit) []byte {
					if int(u.N) >= link.units {
						return wanted
					}
					return unit
				}
				u := NewFetcher(w, noCache{})
				stream, other := u.Share(), u.Share()
				var waits sync.WaitGroup
				begun := time.Now()
				var late time.Duration
				for n := range link.units {
					wait, err := stream.Stream(t.Context(), at(refs[0], n), large)
					if err != nil {
						t.Fatal(err)
					}
					waits.Go(func() {
						if received, err := wait(t.Context()); err != nil || received != int64(len(unit)) {
							t.Errorf("unit %d: got %d bytes, %v; want %d", n, received, err, len(unit))
						}
					})
					if n > link.units/2 && n%10 == 0 {
						fault := at(faults[0], link.units+n)
						waits.Go(func() {
							asked := time.Now()
							if err := other.Read(t.Context(), fault, 0, make([]byte, 10), nil); err != nil {
								t.Error(err)
							}
							w.mu.Lock()
							defer w.mu.Unlock()
							late = max(late, time.Since(asked)-link.rtt-w.takes(small))
						})
					}
				}
				waits.Wait()
				if used := w.used(link.units / 2); used < 0.97 {
					t.Errorf("got %.2f of the link used, want at least 0.97", used)
				}
				half, ideal := w.arrived[link.units/2].at.Sub(begun), link.rtt+w.takes(large*link.units/2)
				if half > ideal*5/4 {
					t.Errorf("the first half took %v, want about %v", half, ideal)
				}
				if most := w.takes(large+minWindow) + link.rtt/2; late > most {
					t.Errorf("a fault was delayed by %v behind the stream, want at most %v", late, most)
				}
				t.Logf("first unit %v, half %v of %v, used %.3f, a fault late by %v, %+v",
					w.arrived[0].at.Sub(begun), half, ideal, w.used(link.units/2), late, u.Stats().Link)
			})
		})
	}
}

var (
	_ Estimator = known{}
	_ Connector = (*readied)(nil)
)

// readied is a path that records the calls of Connect.
type readied struct {
	*path
	mu    sync.Mutex
	calls []int
}

func (r *readied) Connect(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, n)
}

// With a long RTT, a stream makes the source open as many connections as its window needs. With a
// short RTT it does not.
func TestStreamConnects(t *testing.T) {
	const large, units = 200_000, 60
	unit, refs := encode(t, noise(large, 1))
	for rtt, want := range map[time.Duration]int{500 * time.Microsecond: 0,
		10 * time.Millisecond: maxStartupWindow / bytesPerConnection} {
		synctest.Test(t, func(t *testing.T) {
			w := &readied{path: &path{rate: 1e8, rtt: rtt, asked: map[uint32]int{},
				answer: func(chunk.Unit) []byte { return unit }}}
			u := NewFetcher(w, noCache{})
			stream := u.Share()
			for n := range units {
				wait, err := stream.Stream(t.Context(), at(refs[0], n), int64(len(unit)))
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = wait(t.Context()) }()
			}
			time.Sleep(time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, n := range w.calls {
				if n < 1 || n > want {
					t.Errorf("RTT %v: got Connect(%d), want 1 to %d", rtt, n, want)
				}
			}
			if (len(w.calls) > 0) != (want > 0) {
				t.Errorf("RTT %v: got %d calls of Connect, want some: %t", rtt, len(w.calls), want > 0)
			}
		})
	}
}

// Streams and readers share requests: no unit is requested twice, and no cached chunk is requested.
func TestStreamAndReadersShareRequests(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	synctest.Test(t, func(t *testing.T) {
		w := &path{rate: 1e6, rtt: time.Second, asked: map[uint32]int{},
			answer: func(chunk.Unit) []byte { return unit }}
		u := NewFetcher(w, newMemory())
		s := u.Share()
		read := func(ref chunk.Ref) {
			if err := s.Read(t.Context(), ref, 0, make([]byte, 3), nil); err != nil {
				t.Error(err)
			}
		}
		first, err := s.Stream(t.Context(), refs[0], 100)
		if err != nil {
			t.Fatal(err)
		}
		second, err := s.Stream(t.Context(), refs[1], 100)
		if err != nil {
			t.Fatal(err)
		}
		read(refs[1])
		for i, wait := range []func(context.Context) (int64, error){first, second} {
			if n, err := wait(t.Context()); err != nil || n != int64(len(unit))*int64(1-i) {
				t.Errorf("call %d: got %d bytes, %v; want %d", i, n, err, len(unit)*(1-i))
			}
		}
		if wait, err := s.Stream(t.Context(), refs[0], 100); wait != nil || err != nil {
			t.Errorf("Stream of a cached chunk: got error %v, wait set: %t; want neither", err, wait != nil)
		}
		if w.times(where.N) != 1 || u.link.inFlight != 0 || s.streams.Load() != 0 {
			t.Errorf("got %d requests; in the end %d bytes, %d units in flight, want none",
				w.times(where.N), u.link.inFlight, s.streams.Load())
		}
	})
}

// While a reader waits for a request that was sent for it, a stream of the same share causes no
// queue, and still fills the link.
func TestReadersMeetNoQueue(t *testing.T) {
	const large, late = 40_000, 1 << 20
	unit, refs := encode(t, noise(large, 1))
	synctest.Test(t, func(t *testing.T) {
		w := &path{rate: 10e6, rtt: 100 * time.Millisecond, asked: map[uint32]int{}}
		bdp, answer := int64(w.rate*w.rtt.Seconds()), make(chan struct{})
		w.answer = func(u chunk.Unit) []byte {
			if u.N == late {
				<-answer
			}
			return unit
		}
		u := NewFetcher(w, noCache{})
		s := u.Share()
		var waits sync.WaitGroup
		defer waits.Wait()
		stream := func(from, to int) (most int64) {
			for n := from; n < to; n++ {
				wait, err := s.Stream(t.Context(), at(refs[0], n), large)
				if err != nil {
					t.Fatal(err)
				}
				if n > (from+to)/2 {
					most = max(most, u.Stats().Link.InFlight)
				}
				waits.Go(func() {
					if _, err := wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			return most
		}
		if most := stream(0, 400); most < bdp*6/5 {
			t.Errorf("while no reader waits: got %d bytes in flight, want at least %d", most, bdp*6/5)
		}
		waits.Go(func() {
			if err := s.Read(t.Context(), at(refs[0], late), 0, make([]byte, 10), nil); err != nil {
				t.Error(err)
			}
		})
		before := w.arrivals()
		if most := stream(400, 800); most > bdp+large+typicalUnit {
			t.Errorf("while a reader waits: got %d bytes in flight, want at most %d", most, bdp+large+typicalUnit)
		}
		if used := w.used(before); used < 0.9 {
			t.Errorf("%.2f of the link was used while a reader waited, want at least 0.9", used)
		}
		close(answer)
		waits.Wait()
		if s.faults != 0 {
			t.Errorf("got %d faults in the end, want none", s.faults)
		}
	})
}

// A stream pauses while the source fails, and goes on afterwards.
func TestStreamPausesWhileTheSourceFails(t *testing.T) {
	unit, refs := encode(t, "one")
	synctest.Test(t, func(t *testing.T) {
		fails := true
		src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
			if fails {
				return nil, io.ErrClosedPipe
			}
			return unit, nil
		}}
		u := NewFetcher(src, noCache{})
		s := u.Share()
		try := func() error {
			wait, err := s.Stream(t.Context(), refs[0], 100)
			if err == nil {
				_, err = wait(t.Context())
			}
			return err
		}
		if try() == nil {
			t.Error("Stream from a failing source: got no error")
		}
		begun := time.Now()
		fails = false
		if err := try(); err != nil || time.Since(begun) < maxPause {
			t.Errorf("got the next request after %v: %v; want it after maxPause", time.Since(begun), err)
		}
		if u.link.inFlight != 0 || u.gate.running != (counts{}) {
			t.Errorf("in the end: got %d bytes, %+v in flight, want none", u.link.inFlight, u.gate.running)
		}
	})
}
