package store

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
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
