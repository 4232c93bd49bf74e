package store

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// path is a Source behind a simulated link. Answers queue in the order of the requests.
type path struct {
	answer func(u chunk.Unit) []byte
	rate   float64 // bytes a second
	rtt    time.Duration

	mu      sync.Mutex // guards what follows
	busy    time.Time  // when the queue will be empty
	arrived []arrival
	asked   map[uint32]int
}

func (w *path) FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error {
	b := w.answer(u)
	w.mu.Lock()
	w.asked[u.N]++
	sent := time.Now()
	begins := sent.Add(w.rtt / 2)
	if w.busy.After(begins) {
		begins = w.busy
	}
	w.busy = begins.Add(w.takes(len(b)))
	w.mu.Unlock()
	begins = begins.Add(w.rtt / 2)
	time.Sleep(time.Until(begins))
	a := unitAnswer(b, "")
	a.Body = &crossed{w: w, left: b, begins: begins}
	a.RoundTrip, a.Reused = begins.Sub(sent), true
	err := take(a)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrived = append(w.arrived, arrival{time.Now(), len(b)})
	return err
}

type arrival struct {
	at    time.Time
	bytes int
}

// used returns the fraction of the time since an arrival in which the link was busy.
func (w *path) used(from int) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes := 0
	for _, a := range w.arrived[from+1:] {
		bytes += a.bytes
	}
	return float64(w.takes(bytes)) / float64(w.arrived[len(w.arrived)-1].at.Sub(w.arrived[from].at))
}

// arrivals returns the number of answers that have arrived.
func (w *path) arrivals() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.arrived)
}

// times returns how often a unit was asked for.
func (w *path) times(n uint32) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[n]
}

func (w *path) takes(n int) time.Duration {
	return time.Duration(float64(n) / w.rate * float64(time.Second))
}

func (w *path) Fetch(context.Context, chunk.Ref, func(Answer) error) error {
	return chunk.ErrNotFound
}

// crossed is an answer that arrives at the link's rate.
type crossed struct {
	w        *path
	left     []byte
	received int
	begins   time.Time
}

func (c *crossed) Read(b []byte) (int, error) {
	n := copy(b[:min(len(b), 16<<10)], c.left)
	if n == 0 {
		return 0, io.EOF
	}
	c.left = c.left[n:]
	c.received += n
	time.Sleep(time.Until(c.begins.Add(c.w.takes(c.received))))
	return n, nil
}

// noise returns n incompressible bytes.
func noise(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

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

// known is a path with an Estimate.
type known struct {
	*path
	seenRTT  time.Duration
	seenRate float64 // bytes a second
}

var (
	_ Estimator = known{}
	_ Connector = (*readied)(nil)
)

func (k known) Estimate() (time.Duration, float64) { return k.seenRTT, k.seenRate }

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
		if rate() < 0.9*w.rate || s.BytesPerRTT() < int64(0.9*w.rate*w.rtt.Seconds()) {
			t.Errorf("got a rate of %.0f, and %d bytes per RTT; want nearly the link's", rate(), s.BytesPerRTT())
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
