package fuse

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
)

// Latency is how long answers took, in buckets each of which is twice as wide as
// the one before.
type Latency struct {
	Counts [LatencyBuckets + 1]int64 // by bucket; the last has no bound
	Sum    time.Duration
	Max    time.Duration
}

// LatencyBuckets is how many buckets have a bound: from 16 µs to 134 s, which is
// beyond the deadline of a read.
const LatencyBuckets = 24

// LatencyBound returns the longest time that belongs to a bucket.
func LatencyBound(bucket int) time.Duration { return time.Microsecond << (bucket + 4) }

// bucketOf returns the bucket of a time.
func bucketOf(d time.Duration) int {
	if d <= LatencyBound(0) {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/LatencyBound(0))), LatencyBuckets)
}

// Count returns how many answers there were.
func (l Latency) Count() (n int64) {
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// Quantile returns the time within which the share q of the answers came, as far
// as the buckets tell.
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

// plus returns the answers of both.
func (l Latency) plus(other Latency) Latency {
	for i, n := range other.Counts {
		l.Counts[i] += n
	}
	l.Sum += other.Sum
	l.Max = max(l.Max, other.Max)
	return l
}

// latency is a Latency that is counted in, by many at a time.
type latency struct {
	counts [LatencyBuckets + 1]atomic.Int64
	sum    atomic.Int64
	max    atomic.Int64
}

func (l *latency) add(took time.Duration) {
	l.counts[bucketOf(took)].Add(1)
	l.sum.Add(int64(took))
	for old := l.max.Load(); int64(took) > old; old = l.max.Load() {
		if l.max.CompareAndSwap(old, int64(took)) {
			return
		}
	}
}

func (l *latency) get() (g Latency) {
	for i := range l.counts {
		g.Counts[i] = l.counts[i].Load()
	}
	g.Sum, g.Max = time.Duration(l.sum.Load()), time.Duration(l.max.Load())
	return g
}

// answers counts the reads that were answered with bytes: those whose bytes were
// all on this machine, and those that waited for some that were not.
type answers struct {
	here, fetched latency
}

func (a *answers) add(took time.Duration, missed int64) {
	if missed > 0 {
		a.fetched.add(took)
		return
	}
	a.here.add(took)
}

// Why a read failed with an input/output error.
const (
	reasonLate     = "deadline"  // no answer in time
	reasonOverload = "overload"  // more reads waited than are kept
	reasonInvalid  = "invalid"   // what was given is not what was asked for, again and again
	reasonNotFound = "not_found" // the origin does not have the chunk
	reasonIndex    = "index"     // the tree's extent map cannot be read
	reasonOrigin   = "origin"    // the origin cannot be reached, or fails; and all else
)

// Reasons lists why reads fail with an input/output error.
var Reasons = [...]string{reasonLate, reasonOverload, reasonInvalid, reasonNotFound, reasonIndex, reasonOrigin}

// ErrIndex is wrapped by the error of a Reader that cannot read the index of its tree.
var ErrIndex = errors.New("the tree's index cannot be read")

// reasonOf is the one place where errors become reasons.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrIndex):
		return reasonIndex
	case errors.Is(err, errTooLate), errors.Is(err, context.DeadlineExceeded):
		return reasonLate
	case errors.Is(err, errOverloaded):
		return reasonOverload
	case errors.As(err, new(*chunk.InvalidError)):
		return reasonInvalid
	case errors.Is(err, chunk.ErrNotFound):
		return reasonNotFound
	}
	return reasonOrigin
}

// ServerStats are a server's figures since it was made, of all devices together.
type ServerStats struct {
	Here, Fetched           Latency          // of reads whose bytes were all on this machine, and of the others; from the request to the answer
	HereBytes, FetchedBytes int64            // that were on this machine, or not; of reads that were answered
	Failed                  map[string]int64 // reads that ended with an input/output error, by reason
	Resent                  int64            // reads that the kernel sent again, because a former daemon had not answered them
	InWork                  int
	InWorkBytes             int64
	Waiting                 int           // reads that have not begun
	Oldest                  time.Duration // how long the longest of both has been waited for
	InKernel                int64         // requests that the kernel counts as unanswered, with those it has not sent yet; -1 if it does not say
	Stalled                 time.Duration // for how long requests have waited in the kernel although the server read none
}

// Stats returns the figures.
func (s *Server) Stats() ServerStats {
	st := ServerStats{Here: s.answers.here.get(), Fetched: s.answers.fetched.get(), HereBytes: s.hereBytes.Load(),
		FetchedBytes: s.fetchedBytes.Load(), Failed: map[string]int64{}, Resent: s.resent.Load(), InKernel: s.control.waiting()}
	for i, reason := range Reasons {
		st.Failed[reason] = s.failed[i].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.InWork, st.InWorkBytes, st.Waiting = len(s.limits.working), s.limits.bytes, s.limits.waiting
	now := time.Now()
	for r := range s.limits.working {
		if s.reads[r.unique] == r { // it is not answered yet
			st.Oldest = max(st.Oldest, now.Sub(r.since))
		}
	}
	if !s.stall.since.IsZero() {
		st.Stalled = now.Sub(s.stall.since)
	}
	for _, f := range s.limits.queues {
		st.Oldest = max(st.Oldest, now.Sub(f.queue.oldest().since))
	}
	return st
}

// counters are what a server counts without a lock.
type counters struct {
	answers                 answers
	hereBytes, fetchedBytes atomic.Int64
	taken, resent           atomic.Int64               // READs that were read, and those of them that the kernel sent again
	failed                  [len(Reasons)]atomic.Int64 // by the place in Reasons
}

// answered counts a read that was answered with its bytes.
func (c *counters) answered(r *read, missed int64) {
	took := time.Since(r.since)
	c.answers.add(took, missed)
	c.hereBytes.Add(int64(r.size) - missed)
	if missed > 0 {
		c.fetchedBytes.Add(missed)
	}
	r.file.answers.add(took, missed)
}

// gaveUp counts a read that failed with an input/output error.
func (c *counters) gaveUp(f *file, err error) {
	reason := reasonOf(err)
	for i := range Reasons {
		if Reasons[i] == reason {
			c.failed[i].Add(1)
		}
	}
	f.failed.Add(1)
	if reason == reasonOverload {
		f.refused.Add(1)
	}
}

// fileCounters are what a server counts of one device without a lock.
type fileCounters struct {
	answers         answers
	failed, refused atomic.Int64
}

// DeviceStats are a server's figures of one device since it was added.
type DeviceStats struct {
	Failed int64 `json:"failed"` // reads that ended with an input/output error
	// Refused is how many of the failed reads were answered because too many waited. Most are the
	// kernel's read-ahead, which processes repeat if they need the data.
	Refused int64 `json:"refused"`
	Waited  Wait  `json:"waited"` // by processes that read it
}

// Wait is how long readers waited for answers, in seconds.
type Wait struct {
	Fetched int64   `json:"fetchedFaults"` // reads some of whose bytes were not on this machine
	Total   float64 `json:"totalSeconds"`
	P50     float64 `json:"p50Seconds"`
	P99     float64 `json:"p99Seconds"`
	Max     float64 `json:"maxSeconds"`
}

// DeviceStats returns the figures of one device; zeros if the server does not have it.
func (s *Server) DeviceStats(id chunk.ID) DeviceStats {
	f := s.file(nodeID(id))
	if f == nil || f.id != id {
		return DeviceStats{}
	}
	fetched := f.answers.fetched.get()
	all := fetched.plus(f.answers.here.get())
	return DeviceStats{Failed: f.failed.Load(), Refused: f.refused.Load(),
		Waited: Wait{Fetched: fetched.Count(), Total: all.Sum.Seconds(), P50: all.Quantile(0.5).Seconds(),
			P99: all.Quantile(0.99).Seconds(), Max: all.Max.Seconds()}}
}
