package store

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"lighter/format/pack"
)

// link estimates the path to one server from the requests that cross it, and says when there is
// room for a background request (room.go). It is safe for concurrent use.
//
// It works as BBR does (Cardwell and others, "BBR: Congestion-Based Congestion Control", ACM
// Queue 14/5, 2016). The bandwidth is the highest rate at which answers have arrived recently, the
// RTT the shortest recent time to a first byte. Their product, the bandwidth-delay product, has to
// be in flight for the link to be full. Further bytes wait in a queue, and a fault waits behind
// them. During startup, until the bandwidth no longer grows, nearly three times as much may be in
// flight, so that the estimate can double in a round trip.
//
// In a queue every first byte is late. So a queue that the window itself causes would lengthen the
// RTT, and with it the window. To prevent that, the queue is drained from time to time. Unlike BBR,
// link does not pace requests: that made no start faster (docs/decisions/ablation.md).
type link struct {
	mu        sync.Mutex // guards all that follows, and the transfers
	inFlight  int64      // bytes that were requested and have not arrived
	streaming int64      // the part of inFlight that streams have requested
	rate      recent     // bytes a second
	trips     recent     // 1/RTT, in round trips a second, so that the maximum is the shortest RTT
	rtts      int        // RTTs measured
	prior     prior
	sample    sample
	best      float64 // the bandwidth when it last grew
	flat      int     // samples since then in which the window was full
	late      int     // late RTTs in a row (see lateRTTs)

	// room.go has these.
	drained time.Time     // when the queue last began to drain
	queue   []*waiter     // waiting shares that have nothing in flight; the first one has the next turn
	freed   chan struct{} // closed when there may be room; nil if no share waits
}

// prior is the source's own estimate. Its RTT counts until an RTT is measured, its bandwidth until
// startup ends.
type prior struct {
	rtt       time.Duration
	bandwidth float64 // bytes a second
}

// sample is a bandwidth that is being measured.
type sample struct {
	since     time.Time
	delivered int64
	full      bool // a request waited for the window
}

// transfer is one request's use of the link.
type transfer struct {
	left     int64 // bytes that have not arrived
	isStream bool
	began    time.Time
}

// measure measures the answers of a flight. A source that is a Connector learns how many
// connections a stream is going to need.
func (f *Fetcher) measure(next step) step {
	connector, _ := f.source.(Connector)
	own := &f.route
	return func(ctx context.Context, f *flight, take func(Answer) error) error {
		l := &f.route.link
		f.transfer.began = time.Now()
		return next(ctx, f, func(a Answer) error {
			rtt, reused := a.RoundTrip, a.Reused
			if rtt == 0 {
				rtt, reused = time.Since(f.transfer.began), true
			}
			connections := l.firstByte(&f.transfer, min(a.Length, pack.MaxStored), rtt, reused)
			if connector != nil && connections > 0 && f.route == own {
				connector.Connect(connections)
			}
			body := a.Body
			a.Body = readerFunc(func(b []byte) (int, error) {
				n, err := body.Read(b)
				l.received(&f.transfer, int64(n))
				return n, err
			})
			return take(a)
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// assume sets the source's own estimate, if no RTT has been measured here yet. 0 means not known.
func (l *link) assume(rtt time.Duration, bandwidth float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rtts == 0 {
		l.prior = prior{rtt, bandwidth}
	}
}

// isMeasured reports whether an RTT has been measured.
func (l *link) isMeasured() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rtts > 0
}

// begin adds a request of about n bytes.
func (l *link) begin(t *transfer, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.left = n
	l.inFlight += n
}

// firstByte notes that an answer of length bytes (-1: not known) has begun, its RTT, and whether
// its connection had been used before. It returns how many connections are worth opening for the
// next requests: 0 unless the request belongs to a stream, the RTT is long, and connectRTTs RTTs
// were measured.
func (l *link) firstByte(t *transfer, length int64, rtt time.Duration, reused bool) (connections int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if length >= 0 {
		l.inFlight += length - t.left
		if t.isStream {
			l.streaming += length - t.left
		}
		t.left = length
	}
	if rtt > 0 {
		l.addRTT(rtt, reused)
	}
	if !t.isStream || l.rtts < connectRTTs || !l.isLong() {
		return 0
	}
	return int(l.window() / bytesPerConnection)
}

func (l *link) addRTT(rtt time.Duration, reused bool) {
	l.trips.add(1/rtt.Seconds(), rttAge)
	if l.rtts++; l.rtts == 1 && rtt >= max(2*l.prior.rtt, longRTT) {
		// The source's estimate was of another path, or of a path that many nodes share.
		l.prior.bandwidth = min(l.prior.bandwidth, defaultBandwidth)
	}
	switch lateness := min(max(l.roundTrip()/8, minLateness), maxLateness); {
	case rtt <= l.roundTrip()+lateness:
		l.late = 0
	case reused:
		l.late++
	}
	if l.late >= lateRTTs && l.best > 0 {
		l.flat, l.late = flatSamples, 0
		l.prior.bandwidth = 0
	}
}

// received notes that n bytes have arrived.
func (l *link) received(t *transfer, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sample.delivered += n; l.sample.since.IsZero() {
		l.sample = sample{since: time.Now()}
	}
	if took := time.Since(l.sample.since); took >= l.sampleTime() {
		l.addSample(float64(l.sample.delivered)/took.Seconds(), l.sample.full)
		l.sample = sample{since: time.Now()}
	}
	l.subtract(t, min(n, t.left))
	if l.streaming < l.window() { // otherwise no waiter has room
		l.wakeLocked()
	}
}

// subtract subtracts n bytes from what is in flight.
func (l *link) subtract(t *transfer, n int64) {
	t.left -= n
	l.inFlight -= n
	if t.isStream {
		l.streaming -= n
	}
}

func (l *link) sampleTime() time.Duration {
	if l.inStartup() {
		return max(l.roundTrip(), startupSample)
	}
	return max(2*l.roundTrip(), steadySample)
}

// addSample adds a measured rate. full says whether the window was full meanwhile. If it was not, a
// low rate only means that little was requested.
func (l *link) addSample(rate float64, full bool) {
	if full || rate > l.rate.max() {
		l.rate.add(rate, bandwidthAge)
	}
	switch best := l.rate.max(); {
	case best >= growth*l.best:
		l.best, l.flat = best, 0
	case full:
		l.flat++
	}
	if !l.inStartup() {
		l.prior.bandwidth = 0
	}
}

// end notes that nothing more of a request arrives.
func (l *link) end(t *transfer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subtract(t, t.left)
	l.wakeLocked()
}

// roundTrip returns the RTT; 0: not known.
func (l *link) roundTrip() time.Duration {
	if l.rtts == 0 {
		return l.prior.rtt
	}
	return time.Duration(math.Round(float64(time.Second) / l.trips.max()))
}

// rttOrDefault returns the RTT, or defaultRTT if it is not known.
func (l *link) rttOrDefault() time.Duration { return cmp.Or(l.roundTrip(), defaultRTT) }

// bandwidth returns the estimate in bytes a second.
func (l *link) bandwidth() float64 {
	if l.inStartup() {
		return max(l.rate.max(), l.priorBandwidth())
	}
	return l.rate.max()
}

// priorBandwidth returns what is assumed during startup. The source's own estimate may come from
// TCP's slow start, so it is raised to minPriorBDP a round trip, but not above defaultBandwidth.
func (l *link) priorBandwidth() float64 {
	if l.prior.bandwidth == 0 {
		return defaultBandwidth
	}
	return max(l.prior.bandwidth, min(minPriorBDP/l.rttOrDefault().Seconds(), defaultBandwidth))
}

// bdp returns the bandwidth-delay product in bytes.
func (l *link) bdp() float64 { return l.bandwidth() * l.rttOrDefault().Seconds() }

// bytesPerRTT returns what Share.BytesPerRTT returns.
func (l *link) bytesPerRTT() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rtts < minRTTs && l.prior.rtt < longPrior || !l.isLong() {
		return 0
	}
	if l.inFlight >= l.window() {
		l.sample.full = true
	}
	bdp := l.bdp()
	if l.inStartup() { // requesting too much delays only the reader that does it
		bdp = max(bdp, defaultBandwidth*l.rttOrDefault().Seconds())
	}
	return min(max(int64(steadyGain*bdp), minBytesPerRTT), maxBytesPerRTT)
}

func (l *link) isLong() bool { return l.roundTrip() >= longRTT }

// inStartup reports whether the bandwidth may still grow. Startup begins again if a later sample
// shows growth.
func (l *link) inStartup() bool { return l.flat < flatSamples }

func (l *link) gain() float64 {
	if l.inStartup() {
		return startupGain
	}
	return steadyGain
}

// window returns how many bytes may be in flight for a background request to start.
func (l *link) window() int64 {
	limit := int64(maxWindow)
	if l.inStartup() {
		limit = min(max(maxStartupWindow, int64(steadyGain*l.rate.max()*l.roundTrip().Seconds())), limit)
	}
	return min(max(int64(l.gain()*l.bdp()), minWindow), limit)
}

// LinkStats are the current estimate of the path to the source.
type LinkStats struct {
	Rate      int64         `json:"bytesPerSecond"` // bandwidth
	RoundTrip time.Duration `json:"roundTripNs"`
	Window    int64         `json:"windowBytes"` // background requests start while less is in flight
	InFlight  int64         `json:"inFlightBytes"`
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkStats{Rate: int64(l.rate.max()), RoundTrip: l.roundTrip(), Window: l.window(), InFlight: l.inFlight}
}

// recent is the highest of the recent samples, which are positive. It is 0 if there was no sample.
// While no new samples arrive, it keeps the last ones.
type recent struct {
	now, before float64   // the highest samples since the time since, and in the period before it
	since       time.Time // when the current period began
}

// add adds a sample, which counts for at least the duration keep. It counts for at most twice keep,
// or, if no sample is added in that time, until the next one is.
func (r *recent) add(x float64, keep time.Duration) {
	if t := time.Now(); t.Sub(r.since) > keep {
		r.now, r.before, r.since = 0, r.now, t
	}
	r.now = max(r.now, x)
}

func (r *recent) max() float64 { return max(r.now, r.before) }
