package record

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/device"
)

// readLog has the reads of one device since the recording began. It is an observer that never
// blocks and allocates nothing.
type readLog struct {
	tree  chunk.ID
	began time.Time
	noted atomic.Int64 // number of reads, including those for which notes has no room
	notes [trace.MaxReads]atomic.Uint64
}

var _ device.Observer = (*readLog)(nil)

func newReadLog(tree chunk.ID, began time.Time) *readLog {
	return &readLog{tree: tree, began: began}
}

// Observe writes a note of a read.
func (r *readLog) Observe(read device.Read) {
	at := min(time.Since(r.began), trace.MaxTime).Milliseconds()
	first, end := read.Offset/pageSize, (read.Offset+read.Length+pageSize-1)/pageSize
	if end >= 1<<pageBits || end-first > maxPages || read.Offset < 0 || read.Length <= 0 {
		return // the kernel never sends such a read
	}
	if i := r.noted.Add(1) - 1; i < int64(len(r.notes)) {
		r.notes[i].Store(uint64(first)<<(countBits+timeBits) | uint64(end-first)<<timeBits | uint64(at))
	}
}

// count returns the number of notes.
func (r *readLog) count() int { return int(min(r.noted.Load(), int64(len(r.notes)))) }

// bytes returns the number of bytes in all notes. Bytes that were read twice count twice.
func (r *readLog) bytes() (sum int64) {
	for i := range r.count() {
		sum += int64(r.notes[i].Load() >> timeBits & maxPages * pageSize)
	}
	return sum
}

// trace returns the reads in their order. If a page was read several times, only its first read is
// in the trace.
func (r *readLog) trace() trace.Trace {
	t := trace.Trace{Tree: r.tree}
	var recorded spans
	var last time.Duration
	for i := range r.count() {
		note := r.notes[i].Load()
		if note == 0 {
			continue // Observe has counted the read, but not written its note yet
		}
		first := int64(note >> (countBits + timeBits))
		last = max(last, time.Duration(note&timeMask)*time.Millisecond)
		recorded.add(first, first+int64(note>>timeBits&maxPages), func(from, to int64) {
			t.Reads = appendRead(t.Reads, trace.Read{At: last, Offset: from * pageSize, Length: (to - from) * pageSize})
		})
	}
	return t
}

// appendRead appends a read, or extends the last read if the new read continues it.
func appendRead(reads []trace.Read, read trace.Read) []trace.Read {
	if n := len(reads); n > 0 && reads[n-1].Offset+reads[n-1].Length == read.Offset {
		reads[n-1].Length += read.Length
		return reads
	}
	return append(reads, read)
}

// spans is a set of pages: ranges in ascending order, with gaps between them.
type spans []span

type span struct{ from, to int64 } // the pages in [from, to)

// add adds the pages in [from, to). It calls fresh for each range in [from, to) that was not in the
// set.
func (s *spans) add(from, to int64, fresh func(from, to int64)) {
	i, _ := slices.BinarySearchFunc(*s, from, func(old span, at int64) int { return cmp.Compare(old.to, at) })
	j, at, joined := i, from, span{from, to}
	for ; j < len(*s) && (*s)[j].from <= to; j++ {
		old := (*s)[j]
		if at < old.from {
			fresh(at, old.from)
		}
		at = max(at, old.to)
		joined = span{min(joined.from, old.from), max(joined.to, old.to)}
	}
	if at < to {
		fresh(at, to)
	}
	*s = slices.Replace(*s, i, j, joined)
}
