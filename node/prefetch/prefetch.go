// Package prefetch promises to say what to ask for before it is asked. It knows two
// signs of what comes next. A reader that goes through a file from one end to the
// other gets as much data ahead of it as it has read of the file. And startup packs
// hold what starts use together: which of their units hold what, and of which reads it
// follows that a pack is wanted.
//
// It refuses to fetch: it only names ranges of a device. It holds a few numbers
// for each reader and does no work in the background.
package prefetch

import "sync"

const (
	// readers is how many readers of one device are told apart.
	readers = 16
	// firstWindow and maxWindow bound what is asked for ahead, in bytes. The
	// longest window is what keeps a link of 1 Gbit/s busy while the reader
	// stands still for a moment, as it does when processors are short.
	firstWindow = 256 << 10
	maxWindow   = 64 << 20
	// steps is how many times a window is asked for: in pieces, so that most of
	// it is on its way at any time.
	steps = 8
)

// Range is a part of a device, in bytes.
type Range struct{ From, To int64 }

// Sequential finds the sequential readers of one device. The zero value is
// ready to use, and safe for concurrent use.
type Sequential struct {
	mu      sync.Mutex // guards readers and clock
	readers [readers]reader
	clock   int64
}

// reader is one that has read a piece and may read the next.
type reader struct {
	start  int64 // where it began in this file
	end    int64 // of the file; 0: not known
	next   int64 // where it will go on, if it does
	ahead  int64 // up to where was asked for
	proved bool  // it has read more than once
	used   int64
}

// slack is how far a read may lie from where its reader ended and still belong
// to it: the kernel sends the parts of one large read in any order.
const slack = 2 << 20

// Read tells of a read and returns the range to ask for now, which is empty
// most of the time. end says where the file ends that is read, if that is before
// to, and otherwise returns to; it is called only if there may be a range.
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
