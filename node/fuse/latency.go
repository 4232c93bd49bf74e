package fuse

import (
	"math/bits"
	"sync"
	"time"
)

// Latency is a histogram of durations. Each bucket's bound is twice the previous bucket's bound.
type Latency struct {
	Counts [LatencyBuckets + 1]int64 // by bucket; the last bucket has no bound
	Sum    time.Duration
	Max    time.Duration
}

// LatencyBuckets is the number of buckets with a bound: from 16 µs to 134 s, which is beyond the
// deadline of a read.
const LatencyBuckets = 24

// LatencyBound returns the longest time in a bucket.
func LatencyBound(bucket int) time.Duration { return time.Microsecond << (bucket + 4) }

// bucketOf returns the bucket of a time.
func bucketOf(d time.Duration) int {
	if d <= LatencyBound(0) {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/LatencyBound(0))), LatencyBuckets)
}

// Count returns the number of times in the histogram.
func (l Latency) Count() (n int64) {
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// Quantile estimates the q-quantile: the time that a share q (0 to 1) of all times does not exceed.
func (l Latency) Quantile(q float64) time.Duration {
	rank := q * float64(l.Count())
	for i, n := range l.Counts {
		if float64(n) < rank || n == 0 {
			rank -= float64(n)
			continue
		}
		var from time.Duration
		if i > 0 {
			from = LatencyBound(i - 1)
		}
		to := l.Max
		if i < LatencyBuckets {
			to = min(LatencyBound(i), to)
		}
		return from + time.Duration(rank/float64(n)*float64(max(to-from, 0)))
	}
	return l.Max
}

// plus returns the sum of two histograms.
func (l Latency) plus(other Latency) Latency {
	for i, n := range other.Counts {
		l.Counts[i] += n
	}
	l.Sum += other.Sum
	l.Max = max(l.Max, other.Max)
	return l
}

// latency counts a Latency. It is safe for concurrent use.
type latency struct {
	mu  sync.Mutex
	all Latency
}

func (l *latency) add(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Counts[bucketOf(took)]++
	l.all.Sum += took
	l.all.Max = max(l.all.Max, took)
}

func (l *latency) get() Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
