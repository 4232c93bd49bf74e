// Package prefetch predicts which ranges of a device will be read next. It knows two signs. A
// sequential reader gets as much data ahead of it as it has read of the file. And startup packs hold
// chunks that starts use together: the package lists which of their units hold which extents, and
// which reads trigger a pack.
//
// It only names ranges, and fetches nothing. It keeps a few numbers for each reader and does no work
// in the background.
package prefetch

import "sync"

const (
	// readers bounds the sequential readers tracked for one device.
	readers = 16
	// firstWindow and maxWindow bound the window of a reader, in bytes. The largest one keeps a link
	// of 1 Gbit/s busy while the reader stalls, as it does on a busy machine.
	firstWindow = 256 << 10
	maxWindow   = 64 << 20
	// A window is requested in steps pieces, so that most of it is in flight at any time.
	steps = 8
)

// Range is a part of a device: bytes From up to, but not including, To.
type Range struct{ From, To int64 }

// Sequential finds the sequential readers of one device. The zero value is ready to use. It is safe
// for concurrent use.
type Sequential struct {
	mu      sync.Mutex // guards readers and clock
	readers [readers]reader
	clock   int64
}

// reader is a possible sequential reader.
type reader struct {
	start  int64 // where it began in this file
	end    int64 // end of the file; 0: unknown
	next   int64 // where it will continue
	ahead  int64 // end of the range requested so far
	proved bool  // it has read more than once
	used   int64 // Sequential.clock at its last read; 0: a free entry
}

// slack is the largest distance between a read and the end of its reader's previous one. The kernel
// sends the parts of one large read in any order.
const slack = 2 << 20

// Read reports a read and returns the range to request now, which is mostly empty. end(to) returns the
// smaller of to and the end of the file that is read; it is called only if there may be a range.
func (s *Sequential) Read(offset, length int64, end func(to int64) int64) Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	st := s.find(offset)
	if st == nil {
		s.replaceOldest(offset, length)
		return Range{}
	}
	st.used = s.clock
	if end := offset + length; end > st.next {
		st.next = end
	}
	st.proved = true
	if st.end > 0 && offset >= st.end { // on to the next file
		st.start, st.end = offset, 0
	}
	window := min(max(st.next-st.start, firstWindow), maxWindow)
	r := Range{From: max(st.next, st.ahead), To: st.next + window}
	if r.To-r.From < window/steps {
		return Range{}
	}
	if to := end(r.To); to < r.To {
		r.To, st.end = to, to
	}
	st.ahead = max(st.ahead, r.To)
	return r
}

func (s *Sequential) find(offset int64) *reader {
	for i := range s.readers {
		st := &s.readers[i]
		if st.used == 0 {
			continue
		}
		if offset == st.next || st.proved && offset > st.next-slack && offset < st.next+slack {
			return st
		}
	}
	return nil
}

func (s *Sequential) replaceOldest(offset, length int64) {
	oldest := &s.readers[0]
	for i := range s.readers {
		if s.readers[i].used < oldest.used {
			oldest = &s.readers[i]
		}
	}
	*oldest = reader{start: offset, next: offset + length, ahead: offset + length, used: s.clock}
}
