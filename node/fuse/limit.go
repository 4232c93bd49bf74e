package fuse

import (
	"container/list"
	"slices"
	"time"
)

// limits decides when a read becomes active. Until then it is queued for its device, so it delays
// no other device. The limits on all devices together do not apply to the first few reads of a
// device (alwaysPerDevice): a device is served even if the reads of all others are stuck.
//
// If more than maxUnanswered reads are active or queued, the oldest read of the longest queue is
// evicted: it fails. So a device that is flooded with reads loses its own reads, and a device with
// few reads loses none. The oldest read is evicted because it is probably read-ahead: a process
// that needs the page reads it again, and that read is the newest.
//
// Package store has a similar round robin, its gate. The two share no code, because here reads also
// leave their queues out of turn: when they are evicted, and when they have waited too long.
//
// A limits is not safe for concurrent use.
type limits struct {
	active map[*read]struct{}
	bytes  int64   // bytes that the active reads ask for
	queued int     // number of queued reads
	queues []*file // files with queued reads; the first file has the next turn
}

func newLimits() limits { return limits{active: map[*read]struct{}{}} }

// queue is a device's part of the limits.
type queue struct {
	active int       // number of active reads
	queued list.List // of *read, the oldest first
}

// oldest returns the read that was queued first, or nil.
func (q *queue) oldest() *read {
	if first := q.queued.Front(); first != nil {
		return first.Value.(*read)
	}
	return nil
}

// add makes a read active or queues it, and reports whether it is active. If there are too many
// reads now, evicted is a read that was removed from its queue.
func (l *limits) add(r *read) (active bool, evicted *read) {
	if active = l.allows(r); active {
		l.activate(r)
	} else {
		l.enqueue(r)
	}
	if l.queued > 0 && l.queued+len(l.active) > maxUnanswered {
		evicted = l.longest().oldest()
		l.dequeue(evicted)
	}
	return active, evicted
}

func (l *limits) enqueue(r *read) {
	q := &r.file.queue
	if q.queued.Len() == 0 {
		l.queues = append(l.queues, r.file)
	}
	r.place = q.queued.PushBack(r)
	l.queued++
}

// longest returns the longest queue. There must be one.
func (l *limits) longest() *queue {
	longest := &l.queues[0].queue
	for _, f := range l.queues[1:] {
		if f.queue.queued.Len() > longest.queued.Len() {
			longest = &f.queue
		}
	}
	return longest
}

func (l *limits) allows(r *read) bool {
	q := &r.file.queue
	if first := q.oldest(); first != nil && first != r {
		return false // first come, first served
	}
	if q.active < alwaysPerDevice {
		return true
	}
	return q.active < maxPerDevice && len(l.active) < maxActive && l.bytes+int64(r.size) <= maxBytes
}

func (l *limits) activate(r *read) {
	r.file.queue.active++
	l.active[r] = struct{}{}
	l.bytes += int64(r.size)
}

// finish ends an active read, and returns the queued reads that became active.
func (l *limits) finish(r *read) (activated []*read) {
	r.file.queue.active--
	delete(l.active, r)
	l.bytes -= int64(r.size)
	// Activate one read of each device in turn, until a whole round activates none.
	for idle := 0; idle < len(l.queues); {
		f := l.queues[0]
		l.queues = append(l.queues[1:], f)
		next := f.queue.oldest()
		if !l.allows(next) {
			idle++
			continue
		}
		idle = 0
		l.dequeue(next)
		l.activate(next)
		activated = append(activated, next)
	}
	return activated
}

// dequeue removes a read from its queue.
func (l *limits) dequeue(r *read) {
	q := &r.file.queue
	q.queued.Remove(r.place)
	r.place = nil
	l.queued--
	if q.queued.Len() == 0 {
		l.queues = slices.DeleteFunc(l.queues, func(other *file) bool { return other == r.file })
	}
}

// dequeueOld removes a device's queued reads that arrived at or before the time until.
func (l *limits) dequeueOld(f *file, until time.Time) (removed []*read) {
	for r := f.queue.oldest(); r != nil && !r.since.After(until); r = f.queue.oldest() {
		l.dequeue(r)
		removed = append(removed, r)
	}
	return removed
}
