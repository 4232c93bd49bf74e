package fuse

import (
	"container/list"
	"slices"
	"time"
)

// A read begins when these limits allow it, and until then waits in its
// device's queue; nobody else waits for it. The limits on all devices together
// do not hold back a device's first few reads: so whatever is stuck on others,
// a device is served.
//
// If more than maxUnanswered reads are in work or wait, the oldest read of the longest queue is
// answered with an error: so a device that is flooded with reads loses its own, and one with few
// does not. The oldest, because a process that waits for a page asks for it again when its
// read-ahead fails, and is then the newest.
const (
	// maxPerDevice bounds the reads in work on one device. It is far above what
	// a disk or a network takes at a time, because many of these may wait for
	// the network while others find their bytes on this machine.
	maxPerDevice = 128
	// maxInWork bounds the reads in work on all devices, maxBytes what they ask
	// for, in bytes.
	maxInWork = 512
	maxBytes  = 64 << 20
	// alwaysPerDevice is how many reads of a device may be in work whatever the
	// other devices do.
	alwaysPerDevice = 4
	// maxUnanswered bounds the reads in work and those that wait, on all devices. It is below
	// what the kernel sends (maxBackground): so when the kernel makes processes wait, there are
	// reads to come, and those that are evicted for them make room for these processes.
	maxUnanswered = maxBackground - 1024
)

// limits decides which reads are in work and which wait. It is not safe for
// concurrent use.
type limits struct {
	working map[*read]struct{} // reads in work
	bytes   int64              // what they ask for
	waiting int                // reads that wait
	queues  []*file            // with reads that wait, each once; the first is next
}

func newLimits() limits { return limits{working: map[*read]struct{}{}} }

// queue is a device's part of the limits.
type queue struct {
	inWork  int
	waiting list.List // of *read, the oldest first
}

// oldest returns the read that has waited for the longest time, or nil.
func (q *queue) oldest() *read {
	if first := q.waiting.Front(); first != nil {
		return first.Value.(*read)
	}
	return nil
}

// enter tells whether a read may begin; if not, it waits. If there are too many reads now, evicted
// is the one that had to go: it waits no more.
func (l *limits) enter(r *read) (begins bool, evicted *read) {
	if begins = l.allow(r); begins {
		l.begin(r)
	} else {
		l.wait(r)
	}
	if l.waiting > 0 && l.waiting+len(l.working) > maxUnanswered {
		evicted = l.longest().oldest()
		l.drop(evicted)
	}
	return begins, evicted
}

func (l *limits) wait(r *read) {
	q := &r.file.queue
	if q.waiting.Len() == 0 {
		l.queues = append(l.queues, r.file)
	}
	r.place = q.waiting.PushBack(r)
	l.waiting++
}

// longest returns the longest queue of reads that wait, of which there is one.
func (l *limits) longest() *queue {
	longest := &l.queues[0].queue
	for _, f := range l.queues[1:] {
		if f.queue.waiting.Len() > longest.waiting.Len() {
			longest = &f.queue
		}
	}
	return longest
}

func (l *limits) allow(r *read) bool {
	q := &r.file.queue
	if first := q.oldest(); first != nil && first != r {
		return false // first come, first served
	}
	if q.inWork < alwaysPerDevice {
		return true
	}
	return q.inWork < maxPerDevice && len(l.working) < maxInWork && l.bytes+int64(r.size) <= maxBytes
}

func (l *limits) begin(r *read) {
	r.file.queue.inWork++
	l.working[r] = struct{}{}
	l.bytes += int64(r.size)
}

// leave ends a read that was in work, and returns those that begin now.
func (l *limits) leave(r *read) (begin []*read) {
	r.file.queue.inWork--
	delete(l.working, r)
	l.bytes -= int64(r.size)
	// One of each device in turn, until a whole round brings none.
	for idle := 0; idle < len(l.queues); {
		f := l.queues[0]
		l.queues = append(l.queues[1:], f)
		next := f.queue.oldest()
		if !l.allow(next) {
			idle++
			continue
		}
		idle = 0
		l.drop(next)
		l.begin(next)
		begin = append(begin, next)
	}
	return begin
}

// drop takes a read that waits out of its queue.
func (l *limits) drop(r *read) {
	q := &r.file.queue
	q.waiting.Remove(r.place)
	r.place = nil
	l.waiting--
	if q.waiting.Len() == 0 {
		l.queues = slices.DeleteFunc(l.queues, func(other *file) bool { return other == r.file })
	}
}

// dropOld takes the oldest reads that wait for a device out of its queue, n at most: those that
// came until then.
func (l *limits) dropOld(f *file, until time.Time, n int) (dropped []*read) {
	for len(dropped) < n {
		r := f.queue.oldest()
		if r == nil || r.since.After(until) {
			break
		}
		l.drop(r)
		dropped = append(dropped, r)
	}
	return dropped
}
