package record

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// pageSize is the unit of a device's ranges, in bytes.
const pageSize = 4096

// A note is one read in eight bytes: its first page, how many, and when, in
// milliseconds since the mount. 0 is no read.
const (
	pageBits, countBits, timeBits = 32, 10, 22

	maxPages = 1<<countBits - 1
	timeMask = 1<<timeBits - 1
)

// Recording is what was read of one device since it was mounted. Many may note
// reads at a time; nobody waits for anybody, and nothing is allocated.
type Recording struct {
	tree  chunk.ID
	began time.Time
	noted atomic.Int64 // reads, also those that there was no room for
	notes [trace.MaxReads]atomic.Uint64
}

func newRecording(tree chunk.ID, began time.Time) *Recording {
	return &Recording{tree: tree, began: began}
}

// Note notes a read of length bytes at offset. It costs some tens of nanoseconds.
func (r *Recording) Note(offset, length int64) {
	at := min(time.Since(r.began), trace.MaxTime).Milliseconds()
	first, end := offset/pageSize, (offset+length+pageSize-1)/pageSize
	if end >= 1<<pageBits || end-first > maxPages || offset < 0 || length <= 0 {
		return // no kernel asks for that
	}
	if i := r.noted.Add(1) - 1; i < int64(len(r.notes)) {
		r.notes[i].Store(uint64(first)<<(countBits+timeBits) | uint64(end-first)<<timeBits | uint64(at))
	}
}

// count returns how many reads were noted.
func (r *Recording) count() int { return int(min(r.noted.Load(), int64(len(r.notes)))) }

// bytes returns how many bytes were read, those that were read twice counted
// twice.
func (r *Recording) bytes() (sum int64) {
	for i := range r.count() {
		sum += int64(r.notes[i].Load() >> timeBits & maxPages * pageSize)
	}
	return sum
}

// trace returns what was read, in the order of reading, each page once: where it
// was read first.
func (r *Recording) trace() trace.Trace {
	t := trace.Trace{Tree: r.tree}
	var seen spans
	var last time.Duration
	for i := range r.count() {
		note := r.notes[i].Load()
		if note == 0 {
			continue // whoever notes it was overtaken by the end
		}
		first := int64(note >> (countBits + timeBits))
		last = max(last, time.Duration(note&timeMask)*time.Millisecond)
		seen.add(first, first+int64(note>>timeBits&maxPages), func(from, to int64) {
			t.Reads = appendRead(t.Reads, trace.Read{At: last, Offset: from * pageSize, Length: (to - from) * pageSize})
		})
	}
	return t
}

// appendRead adds a read, to the last one if it goes on there.
func appendRead(reads []trace.Read, read trace.Read) []trace.Read {
	if n := len(reads); n > 0 && reads[n-1].Offset+reads[n-1].Length == read.Offset {
		reads[n-1].Length += read.Length
		return reads
	}
	return append(reads, read)
}

// spans is a set of pages: ranges that do not touch, in order.
type spans []span

type span struct{ from, to int64 } // pages; to is beyond

// add adds pages, and calls fresh for each range of them that was not in the set.
func (s *spans) add(from, to int64, fresh func(from, to int64)) {
	i, _ := slices.BinarySearchFunc(*s, from, func(one span, at int64) int { return cmp.Compare(one.to, at) })
	j, at, joined := i, from, span{from, to}
	for ; j < len(*s) && (*s)[j].from <= to; j++ {
		one := (*s)[j]
		if at < one.from {
			fresh(at, one.from)
		}
		at = max(at, one.to)
		joined = span{min(joined.from, one.from), max(joined.to, one.to)}
	}
	if at < to {
		fresh(at, to)
	}
	*s = slices.Replace(*s, i, j, joined)
}
