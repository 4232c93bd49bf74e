package device

import "slices"

// A read begins when these limits allow it, and until then waits in its
// device's queue; nobody else waits for it. The limits on all devices together
// do not hold back a device's first few reads: so whatever is stuck on others,
// a device is served.
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
	// maxWaiting bounds the reads that wait. The kernel sends no more either.
	maxWaiting = maxBackground
)

// limits decides which reads are in work and which wait. It is not safe for
// concurrent use.
type limits struct {
	inWork  int     // reads in work
	bytes   int64   // what they ask for
	waiting int     // reads that wait
	queues  []*file // with reads that wait, each once; the first is next
}

// queue is a device's part of the limits.
type queue struct {
	inWork  int
	waiting []*read // the first is next
}

// enter tells whether a read may begin. If not, it waits, if there is room;
// without room, neither is true.
func (l *limits) enter(r *read) (begins, waits bool) {
	if l.allow(r) {
		l.begin(r)
		return true, false
	}
	if l.waiting >= maxWaiting {
		return false, false
	}
	if len(r.file.queue.waiting) == 0 {
		l.queues = append(l.queues, r.file)
	}
	r.file.queue.waiting = append(r.file.queue.waiting, r)
	l.waiting++
	return false, true
}

func (l *limits) allow(r *read) bool {
	q := &r.file.queue
	if len(q.waiting) > 0 && q.waiting[0] != r {
		return false // first come, first served
	}
	if q.inWork < alwaysPerDevice {
		return true
	}
	return q.inWork < maxPerDevice && l.inWork < maxInWork && l.bytes+int64(r.size) <= maxBytes
}

func (l *limits) begin(r *read) {
	r.file.queue.inWork++
	l.inWork++
	l.bytes += int64(r.size)
}

// leave ends a read that was in work, and returns those that begin now.
func (l *limits) leave(r *read) (begin []*read) {
	r.file.queue.inWork--
	l.inWork--
	l.bytes -= int64(r.size)
	// One of each device in turn, until a whole round brings none.
	for idle := 0; idle < len(l.queues); {
		f := l.queues[0]
		l.queues = append(l.queues[1:], f)
		next := f.queue.waiting[0]
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
	if q.waiting[0] == r {
		q.waiting = q.waiting[1:]
	} else {
		q.waiting = slices.DeleteFunc(q.waiting, func(other *read) bool { return other == r })
	}
	l.waiting--
	if len(q.waiting) == 0 {
		q.waiting = nil
		l.queues = slices.DeleteFunc(l.queues, func(other *file) bool { return other == r.file })
	}
}
