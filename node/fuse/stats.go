package fuse

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
)

// reason says why a read failed with an input/output error. It is an index in Reasons.
type reason int

const (
	reasonLate     reason = iota // no answer in time
	reasonOverload               // too many reads were queued
	reasonInvalid                // the origins' answers were repeatedly invalid
	reasonNotFound               // no origin has the chunk
	reasonIndex                  // the tree's extent map cannot be read
	reasonOrigin                 // no origin can be reached, or origins fail; also all other errors
)

// Reasons lists the reasons why reads fail with an input/output error.
var Reasons = [...]string{"deadline", "overload", "invalid", "not_found", "index", "origin"}

// ErrIndex is wrapped by the error of a Reader that cannot read the index of its tree.
var ErrIndex = errors.New("the tree's index cannot be read")

// reasonOf maps an error to a reason.
func reasonOf(err error) reason {
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
	// Cached has the times from request to answer of reads whose bytes were all on this machine.
	// Fetched has the times of all other successful reads.
	Cached, Fetched Latency
	// CachedBytes is the number of answered bytes that were on this machine. FetchedBytes is the
	// number of answered bytes that were not.
	CachedBytes, FetchedBytes int64

	Failed map[string]int64 // number of reads that failed with an input/output error, by reason
	Resent int64            // number of reads that the kernel resent: a previous daemon had not answered them

	Active      int           // number of reads that Readers are answering
	ActiveBytes int64         // bytes that these reads ask for
	Queued      int           // number of reads that are not active yet
	Oldest      time.Duration // age of the oldest unanswered read
	InKernel    int64         // number of requests that the kernel counts as unanswered, sent or not; -1: unknown
	Stalled     time.Duration // how long requests have waited in the kernel while the server read none
}

// Stats returns the server's figures.
func (s *Server) Stats() ServerStats {
	st := ServerStats{Cached: s.answers.cached.get(), Fetched: s.answers.fetched.get(),
		CachedBytes: s.cachedBytes.Load(), FetchedBytes: s.fetchedBytes.Load(),
		Failed: map[string]int64{}, Resent: s.resent.Load(), InKernel: s.control.waiting()}
	for i, reason := range Reasons {
		st.Failed[reason] = s.failed[i].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Active, st.ActiveBytes, st.Queued = len(s.limits.active), s.limits.bytes, s.limits.queued
	now := time.Now()
	for r := range s.limits.active {
		if s.reads[r.unique] == r { // it is not answered yet
			st.Oldest = max(st.Oldest, now.Sub(r.since))
		}
	}
	st.Stalled = s.stall.duration(now)
	for _, f := range s.limits.queues {
		st.Oldest = max(st.Oldest, now.Sub(f.queue.oldest().since))
	}
	return st
}

// DeviceStats are a server's figures of one device since it was added.
type DeviceStats struct {
	Failed int64 `json:"failed"` // number of reads that failed with an input/output error
	// Refused is how many of the failed reads were evicted because too many were queued. Most are
	// the kernel's read-ahead, which processes repeat if they need the data.
	Refused int64 `json:"refused"`
	Waited  Wait  `json:"waited"` // how long successful reads of the device took
}

// Wait says how long successful reads waited for their answers.
type Wait struct {
	Fetched int64   `json:"fetchedFaults"` // number of these reads with bytes that were not on this machine
	Total   float64 `json:"totalSeconds"`
	P50     float64 `json:"p50Seconds"`
	P99     float64 `json:"p99Seconds"`
	Max     float64 `json:"maxSeconds"`
}

// DeviceStats returns the figures of one device, or zeros if the server does not have it.
func (s *Server) DeviceStats(id chunk.ID) DeviceStats {
	f := s.device(id)
	if f == nil {
		return DeviceStats{}
	}
	fetched := f.answers.fetched.get()
	all := fetched.plus(f.answers.cached.get())
	return DeviceStats{Failed: f.failed.Load(), Refused: f.refused.Load(),
		Waited: Wait{Fetched: fetched.Count(), Total: all.Sum.Seconds(), P50: all.Quantile(0.5).Seconds(),
			P99: all.Quantile(0.99).Seconds(), Max: all.Max.Seconds()}}
}

// counters are what a server counts without a lock.
type counters struct {
	answers                   answers
	cachedBytes, fetchedBytes atomic.Int64
	received, resent          atomic.Int64               // number of READs received, and of READs that were resent
	failed                    [len(Reasons)]atomic.Int64 // by reason
}

// fileCounters are what a server counts of one device without a lock.
type fileCounters struct {
	answers         answers
	failed, refused atomic.Int64
}

// answers has the latencies of successful reads: cached if all bytes were on this machine, else
// fetched.
type answers struct{ cached, fetched latency }

func (a *answers) add(took time.Duration, missed int64) {
	if missed > 0 {
		a.fetched.add(took)
		return
	}
	a.cached.add(took)
}

// countAnswer counts a successful read.
func (c *counters) countAnswer(r *read, missed int64) {
	took := time.Since(r.since)
	c.answers.add(took, missed)
	c.cachedBytes.Add(int64(r.size) - missed)
	if missed > 0 {
		c.fetchedBytes.Add(missed)
	}
	r.file.answers.add(took, missed)
}

// countFailure counts a read that failed with an input/output error.
func (c *counters) countFailure(f *file, err error) {
	reason := reasonOf(err)
	c.failed[reason].Add(1)
	f.failed.Add(1)
	if reason == reasonOverload {
		f.refused.Add(1)
	}
}
