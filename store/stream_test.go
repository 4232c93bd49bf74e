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

// wire is a Source behind a link of that many bytes a second, on which a round trip
// takes trip: answers queue before it, in the order in which they were asked for.
type wire struct {
	answer func(u chunk.Unit) []byte
	rate   float64
	trip   time.Duration

	mu      sync.Mutex
	busy    time.Time // it has something to do until then
	arrived []arrival
	asked   map[uint32]int
}

func (w *wire) FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error {
	b := w.answer(u)
	w.mu.Lock()
	w.asked[u.N]++
	sent := time.Now()
	begins := sent.Add(w.trip / 2)
	if w.busy.After(begins) {
		begins = w.busy
	}
	w.busy = begins.Add(w.takes(len(b)))
	w.mu.Unlock()
	begins = begins.Add(w.trip / 2)
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

// used returns which part of the time after the given arrival something arrived in.
func (w *wire) used(from int) float64 {
	bytes := 0
	for _, a := range w.arrived[from+1:] {
		bytes += a.bytes
	}
	return float64(w.takes(bytes)) / float64(w.arrived[len(w.arrived)-1].at.Sub(w.arrived[from].at))
}

// times tells how many times a unit was asked for.
func (w *wire) times(n uint32) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[n]
}

func (w *wire) takes(n int) time.Duration {
	return time.Duration(float64(n) / w.rate * float64(time.Second))
}

func (w *wire) Fetch(context.Context, chunk.Ref, func(Answer) error) error {
	return chunk.ErrNotFound
}

// crossed is an answer that arrives as fast as the link carries it.
type crossed struct {
	w      *wire
	left   []byte
	came   int
	begins time.Time
}

func (c *crossed) Read(b []byte) (int, error) {
	n := copy(b[:min(len(b), 16<<10)], c.left)
	if n == 0 {
		return 0, io.EOF
	}
	c.left = c.left[n:]
	c.came += n
	time.Sleep(time.Until(c.begins.Add(c.w.takes(c.came))))
	return n, nil
}

// noise returns n bytes that do not compress.
func noise(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// A stream fills a link of any delay, and a fault that comes in between waits for
// little: a unit, the least window, and what the link holds in half a round trip.
func TestStreamFillsTheLink(t *testing.T) {
	const large, small = 200_000, 40_000
	unit, refs := encode(t, noise(large/2, 1), noise(large/2, 2))
	wanted, faults := encode(t, noise(small, 3))
	for name, link := range map[string]struct {
		mbit  float64
		trip  time.Duration
		units int
	}{
		"1 Gbit/s, 0.5 ms":  {1000, 500 * time.Microsecond, 300},
		"1 Gbit/s, 10 ms":   {1000, 10 * time.Millisecond, 400},
		"1 Gbit/s, 50 ms":   {1000, 50 * time.Millisecond, 800},
		"100 Mbit/s, 10 ms": {100, 10 * time.Millisecond, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{rate: link.mbit * 1e6 / 8, trip: link.trip, asked: map[uint32]int{}}
				w.answer = func(u chunk.Unit) []byte {
					if int(u.N) >= link.units {
						return wanted
					}
					return unit
				}
				u := NewUnits(w, nothing{})
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
						if came, err := wait(t.Context()); err != nil || came != int64(len(unit)) {
							t.Errorf("unit %d: %d bytes, %v", n, came, err)
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
							late = max(late, time.Since(asked)-link.trip-w.takes(small))
						})
					}
				}
				waits.Wait()
				if used := w.used(link.units / 2); used < 0.97 {
					t.Errorf("%.2f of the link was used", used)
				}
				half, ideal := w.arrived[link.units/2].at.Sub(begun), link.trip+w.takes(large*link.units/2)
				if half > ideal*5/4 {
					t.Errorf("the first half took %v, %v when the link is full from the start", half, ideal)
				}
				if most := w.takes(large+minWindow) + link.trip/2; late > most {
					t.Errorf("a fault waited for %v behind the stream", late)
				}
				t.Logf("first unit %v, half %v of %v, used %.3f, a fault late by %v, %+v", w.arrived[0].at.Sub(begun), half, ideal, w.used(link.units/2), late, u.Stats().Link)
			})
		})
	}
}

// known is a wire whose way was seen before.
type known struct {
	*wire
	seenTrip time.Duration
	seenRate float64 // bytes a second
}

var (
	_ Estimator = known{}
	_ Connector = (*readied)(nil)
)

func (k known) Estimate() (time.Duration, float64) { return k.seenTrip, k.seenRate }

// A source that has seen the way spares a stream the time to find out. What it has seen
// wrongly costs little, and makes no queue beyond that of any beginning.
func TestStreamOverAWayThatWasSeen(t *testing.T) {
	const large, units = 200_000, 60
	unit, refs := encode(t, noise(large, 1))
	const trip = 50 * time.Millisecond
	took := func(t *testing.T, mbit float64, seenTrip time.Duration, seenMbit float64) (took, ideal time.Duration, most int64) {
		synctest.Test(t, func(t *testing.T) {
			w := &wire{rate: mbit * 1e6 / 8, trip: trip, asked: map[uint32]int{}, answer: func(chunk.Unit) []byte { return unit }}
			u := NewUnits(known{w, seenTrip, seenMbit * 1e6 / 8}, nothing{})
			stream := u.Share()
			var waits sync.WaitGroup
			begun := time.Now()
			for n := range units {
				wait, err := stream.Stream(t.Context(), at(refs[0], n), int64(len(unit)))
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, u.Stats().Link.OnTheWay)
				waits.Go(func() {
					if _, err := wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			waits.Wait()
			took, ideal = time.Since(begun), w.trip+w.takes(units*len(unit))
		})
		return took, ideal, most
	}
	unknown, ideal, _ := took(t, 1000, 0, 0)
	if seen, _, _ := took(t, 1000, trip, 900); seen > ideal*21/20 || seen+25*time.Millisecond > unknown {
		t.Errorf("it took %v, %v of a way that was not seen, and can take %v", seen, unknown, ideal)
	}
	for name, wrong := range map[string]struct {
		trip time.Duration
		mbit float64
	}{"slow": {trip, 1}, "fast": {trip, 1e6}, "near": {trip / 100, 100}, "near and fast": {trip / 100, 1e6}, "far": {10 * trip, 100}, "far and fast": {10 * trip, 1e6}} {
		if took, ideal, most := took(t, 100, wrong.trip, wrong.mbit); took > ideal*5/4 || most > maxStartupWindow+large {
			t.Errorf("100 Mbit/s taken for %s: %v, %v is possible, and %d bytes on their way", name, took, ideal, most)
		}
		if took, _, _ := took(t, 1000, wrong.trip, wrong.mbit); took > unknown*13/10 {
			t.Errorf("1 Gbit/s taken for %s: %v, %v of a way that was not seen", name, took, unknown)
		}
	}
}

// readied is a wire that notes how many connections it was told to make.
type readied struct {
	*wire
	mu   sync.Mutex
	told []int
}

func (r *readied) Connect(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, n)
}

// Over a long way a stream says how many connections it has use for, by its window; over a
// short one it does not.
func TestStreamHasConnectionsMade(t *testing.T) {
	const large, units = 200_000, 60
	unit, refs := encode(t, noise(large, 1))
	for trip, want := range map[time.Duration]int{500 * time.Microsecond: 0, 10 * time.Millisecond: maxStartupWindow / bytesPerConnection} {
		synctest.Test(t, func(t *testing.T) {
			w := &readied{wire: &wire{rate: 1e8, trip: trip, asked: map[uint32]int{}, answer: func(chunk.Unit) []byte { return unit }}}
			u := NewUnits(w, nothing{})
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
			for _, n := range w.told {
				if n < 1 || n > want {
					t.Errorf("%v: it wants %d connections", trip, n)
				}
			}
			if (len(w.told) > 0) != (want > 0) {
				t.Errorf("%v: it said %d times how many it wants", trip, len(w.told))
			}
		})
	}
}

// What a stream asks for, a reader joins, and the other way round: nothing is asked
// for twice, and what is here is not asked for at all.
func TestStreamAndReadersShareRequests(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	synctest.Test(t, func(t *testing.T) {
		w := &wire{rate: 1e6, trip: time.Second, asked: map[uint32]int{}, answer: func(chunk.Unit) []byte { return unit }}
		u := NewUnits(w, newMemory())
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
				t.Errorf("call %d: %d bytes came, %v", i, n, err)
			}
		}
		if wait, err := s.Stream(t.Context(), refs[0], 100); wait != nil || err != nil {
			t.Error("asked for what is here", err)
		}
		if w.times(where.N) != 1 || u.link.inFlight != 0 || s.streams.Load() != 0 {
			t.Errorf("asked %d times; left: %d bytes, %d units", w.times(where.N), u.link.inFlight, s.streams.Load())
		}
	})
}

// While a reader waits for something that was not on its way, a stream of the same
// share makes no queue, and fills the link all the same.
func TestReadersMeetNoQueue(t *testing.T) {
	const large, late = 40_000, 1 << 20
	unit, refs := encode(t, noise(large, 1))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{rate: 10e6, trip: 100 * time.Millisecond, asked: map[uint32]int{}}
		holds, answer := int64(w.rate*w.trip.Seconds()), make(chan struct{})
		w.answer = func(u chunk.Unit) []byte {
			if u.N == late {
				<-answer
			}
			return unit
		}
		u := NewUnits(w, nothing{})
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
					most = max(most, u.Stats().Link.OnTheWay)
				}
				waits.Go(func() {
					if _, err := wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			return most
		}
		if most := stream(0, 400); most < holds*6/5 {
			t.Errorf("while nobody waits %d bytes are on their way, the link holds %d", most, holds)
		}
		waits.Go(func() {
			if err := s.Read(t.Context(), at(refs[0], late), 0, make([]byte, 10), nil); err != nil {
				t.Error(err)
			}
		})
		before := len(w.arrived)
		if most := stream(400, 800); most > holds+large+typicalUnit {
			t.Errorf("while a reader waits %d bytes are on their way, the link holds %d", most, holds)
		}
		if used := w.used(before); used < 0.9 {
			t.Errorf("%.2f of the link was used while a reader waited", used)
		}
		close(answer)
		waits.Wait()
		if s.faults != 0 {
			t.Errorf("%d faults in the end", s.faults)
		}
	})
}

// A source that fails is left alone, and the stream goes on when it is back.
func TestStreamLeavesAFailingSourceAlone(t *testing.T) {
	unit, refs := encode(t, "one")
	synctest.Test(t, func(t *testing.T) {
		fails := true
		src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
			if fails {
				return nil, io.ErrClosedPipe
			}
			return unit, nil
		}}
		u := NewUnits(src, nothing{})
		s := u.Share()
		try := func() error {
			wait, err := s.Stream(t.Context(), refs[0], 100)
			if err == nil {
				_, err = wait(t.Context())
			}
			return err
		}
		if try() == nil {
			t.Error("no error")
		}
		begun := time.Now()
		fails = false
		if err := try(); err != nil || time.Since(begun) < maxPause {
			t.Errorf("asked again after %v: %v", time.Since(begun), err)
		}
		if u.link.inFlight != 0 || u.gate.running != (counts{}) {
			t.Errorf("left: %d bytes, %+v", u.link.inFlight, u.gate.running)
		}
	})
}

// That little is asked for says nothing of what the link holds; that little comes of
// much does.
func TestLinkIsMeasuredWhenItIsFull(t *testing.T) {
	unit, refs := encode(t, noise(100_000, 1), noise(100_000, 2))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{rate: 100e6, trip: 10 * time.Millisecond, asked: map[uint32]int{}, answer: func(chunk.Unit) []byte { return unit }}
		u := NewUnits(w, nothing{})
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
		if rate() < 0.9*w.rate || s.Reach() < int64(0.9*w.rate*w.trip.Seconds()) {
			t.Errorf("a rate of %.0f, %d in reach", rate(), s.Reach())
		}
		for range 1000 {
			n++
			if err := s.Read(t.Context(), at(refs[0], n), 0, make([]byte, 10), nil); err != nil {
				t.Fatal(err)
			}
		}
		if rate() < 0.9*w.rate {
			t.Errorf("a rate of %.0f when little is asked for", rate())
		}
		w.mu.Lock()
		w.rate /= 10
		w.mu.Unlock()
		stream(300)
		if rate() > 1.2*w.rate {
			t.Errorf("a rate of %.0f when the link has become slow", rate())
		}
	})
}

// However long a stream takes, what may be on its way does not grow: the queue that it
// makes itself is not taken for a longer way.
func TestLongStreamStaysCalm(t *testing.T) {
	const large = 200_000
	unit, refs := encode(t, noise(large/2, 1), noise(large/2, 2))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{rate: 100e6 / 8, trip: 10 * time.Millisecond, asked: map[uint32]int{}, answer: func(chunk.Unit) []byte { return unit }}
		u := NewUnits(w, nothing{})
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
		if st := u.Stats().Link; st.RoundTrip > w.trip*11/10 {
			t.Errorf("after a minute a round trip is taken for %v, and %d bytes may be on their way", st.RoundTrip, st.Window)
		}
		if used := w.used(100); used < 0.97 {
			t.Errorf("%.3f of the link was used", used)
		}
	})
}
