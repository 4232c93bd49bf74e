package prefetch

import "sync"

// span is a range of a device: its first byte, and the byte after its last one.
type span struct{ from, to int64 }

// tracker finds the sequential readers of one device. The zero value is ready to use. It is safe
// for concurrent use.
type tracker struct {
	mu      sync.Mutex // guards readers and clock
	readers [maxReaders]reader
	clock   int64
}

// reader is a possible sequential reader.
type reader struct {
	start  int64 // offset of its first read in this file
	end    int64 // end offset of the file; 0: unknown
	next   int64 // offset at which it will probably continue
	ahead  int64 // end of what was requested so far; at first, the end of its first read
	proved bool  // it has read more than once
	used   int64 // tracker.clock at its last read; 0: a free entry
}

// read notes a read, and returns the range to request now. Usually that is empty. end(to) returns
// the smaller of to and the end of the file that is read. It is called only if there may be a range
// to request.
func (t *tracker) read(offset, length int64, end func(to int64) int64) span {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clock++
	r := t.find(offset)
	if r == nil {
		t.replaceOldest(offset, length)
		return span{}
	}
	r.used = t.clock
	r.next = max(r.next, offset+length)
	r.proved = true
	if r.end > 0 && offset >= r.end { // on to the next file
		r.start, r.end = offset, 0
	}
	window := min(max(r.next-r.start, minWindow), maxWindow)
	want := span{max(r.next, r.ahead), r.next + window}
	if want.to-want.from < window/windowSteps {
		return span{}
	}
	if to := end(want.to); to < want.to {
		want.to, r.end = to, to
	}
	r.ahead = max(r.ahead, want.to)
	return want
}

func (t *tracker) find(offset int64) *reader {
	for i := range t.readers {
		r := &t.readers[i]
		if r.used == 0 {
			continue
		}
		if offset == r.next || r.proved && offset > r.next-slack && offset < r.next+slack {
			return r
		}
	}
	return nil
}

func (t *tracker) replaceOldest(offset, length int64) {
	oldest := &t.readers[0]
	for i := range t.readers {
		if t.readers[i].used < oldest.used {
			oldest = &t.readers[i]
		}
	}
	*oldest = reader{start: offset, next: offset + length, ahead: offset + length, used: t.clock}
}
