package origin

import (
	"io"
	"sync"
	"time"
)

// path estimates the network path to an origin.
type path struct {
	mu          sync.Mutex    // guards what follows
	rtt         time.Duration // the lowest in pathTime; 0: not known
	rttAt       time.Time     // when it was measured
	bandwidth   float64       // bytes a second, the highest in pathTime; 0: not known
	bandwidthAt time.Time     // when it was measured
}

// addRoundTrip adds the time to a first byte. It ignores times that are not positive.
func (p *path) addRoundTrip(rtt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rtt > 0 && (p.rtt == 0 || rtt < p.rtt || time.Since(p.rttAt) > pathTime) {
		p.rtt, p.rttAt = rtt, time.Now()
	}
}

// addBandwidth adds the bandwidth of an answer, in bytes a second.
func (p *path) addBandwidth(bandwidth float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bandwidth > p.bandwidth || time.Since(p.bandwidthAt) > pathTime {
		p.bandwidth, p.bandwidthAt = bandwidth, time.Now()
	}
}

// estimate returns what is known of the path; 0: not known.
func (p *path) estimate() (rtt time.Duration, bandwidth float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.bandwidthAt) > bandwidthTime {
		return p.rtt, 0
	}
	return p.rtt, p.bandwidth
}

func (p *path) isLong() bool {
	rtt, _ := p.estimate()
	return rtt >= longRTT
}

// transfer reads the body of an answer and measures the bandwidth at which it arrives.
type transfer struct {
	body io.Reader
	path *path

	burstBegan, last time.Time // when the burst began, and when its last bytes arrived
	burst            int       // bytes of the burst
	total            int       // bytes of the answer so far
	measured         bool      // a burst was measured
	marks            [2]mark   // the last two marks; each has at least twice the bytes of the one before
}

// mark is a point in an answer: when a number of its bytes had arrived.
type mark struct {
	bytes int
	at    time.Time
}

func (t *transfer) Read(b []byte) (int, error) {
	n, err := t.body.Read(b)
	t.add(n)
	return n, err
}

// add notes that n bytes have arrived.
func (t *transfer) add(n int) {
	if n <= 0 {
		return
	}
	now := time.Now()
	if now.Sub(t.last) > maxGap {
		t.burstBegan, t.burst = now, 0
	}
	t.last = now
	if t.burst += n; t.burst >= minBurst {
		t.measured = true
		t.path.addBandwidth(float64(t.burst) / (now.Sub(t.burstBegan) + maxGap).Seconds())
	}
	if t.total += n; t.total >= 2*t.marks[1].bytes {
		t.marks[0], t.marks[1] = t.marks[1], mark{t.total, now}
	}
}

// end measures a complete answer that was long and had no burst, because the link is slow or shared
// by many. Only the last half of the answer counts, or a little more, because of TCP's slow start.
func (t *transfer) end() {
	if half := t.marks[0]; !t.measured && t.total >= minTransfer {
		t.path.addBandwidth(float64(t.total-half.bytes) / (t.last.Sub(half.at) + maxGap).Seconds())
	}
}
