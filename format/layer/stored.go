package layer

import "io"

// Arrived waits until the first n of a unit's stored bytes have arrived. It returns how many have
// arrived, or why no more will.
type Arrived func(n int) (int, error)

// stored are stored bytes of a unit, of which some may still arrive.
type stored struct {
	bytes   []byte
	arrived Arrived // nil: all have arrived
	from    int     // of the unit's stored bytes: the first one of bytes
}

// part returns the bytes from one to another.
func (s stored) part(from, to int64) stored {
	return stored{s.bytes[from:to], s.arrived, s.from + int(from)}
}

// wait waits until the first n bytes have arrived, and returns how many have.
func (s stored) wait(n int) (int, error) {
	if s.arrived == nil {
		return len(s.bytes), nil
	}
	here, err := s.arrived(s.from + n)
	return min(here-s.from, len(s.bytes)), err
}

// all waits until all bytes have arrived.
func (s stored) all() ([]byte, error) {
	_, err := s.wait(len(s.bytes))
	return s.bytes, err
}

// reader returns a reader of the bytes, which waits for those that still arrive.
func (s stored) reader() io.Reader { return &arriving{stored: s} }

type arriving struct {
	stored
	next, here int // the next byte to read, and the first one that may not have arrived
}

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (n int, err error) {
	if a.next == len(a.bytes) {
		return 0, io.EOF
	}
	if a.next == a.here {
		if a.here, err = a.wait(a.next + 1); err != nil {
			a.here = a.next
			return 0, err
		}
	}
	n = copy(p, a.bytes[a.next:a.here])
	a.next += n
	return n, nil
}
