package layer

import "io"

// Arrived waits until the first n of a unit's stored bytes have arrived. It returns how many have
// arrived, or why no more will.
type Arrived func(n int) (int, error)

// arrival is a part of a unit's stored bytes, of which some may still arrive.
type arrival struct {
	stored  []byte
	from    int     // where the part begins in the unit's stored bytes
	arrived Arrived // nil: all have arrived
}

// part returns the bytes from one to another.
func (a arrival) part(from, to int64) arrival {
	return arrival{a.stored[from:to], a.from + int(from), a.arrived}
}

// wait waits until the first n bytes have arrived, and returns how many have.
func (a arrival) wait(n int) (int, error) {
	if a.arrived == nil {
		return len(a.stored), nil
	}
	here, err := a.arrived(a.from + n)
	return min(here-a.from, len(a.stored)), err
}

// all waits until all bytes have arrived.
func (a arrival) all() ([]byte, error) {
	_, err := a.wait(len(a.stored))
	return a.stored, err
}

// reader returns a reader of the bytes, which waits for those that still arrive.
func (a arrival) reader() io.Reader { return &arrivalReader{arrival: a} }

type arrivalReader struct {
	arrival
	next, here int // the next byte to read, and the first one that may not have arrived
}

// Read implements io.Reader.
func (r *arrivalReader) Read(p []byte) (n int, err error) {
	if r.next == len(r.stored) {
		return 0, io.EOF
	}
	if r.next == r.here {
		here, err := r.wait(r.next + 1)
		if err != nil {
			return 0, err
		}
		r.here = here
	}
	n = copy(p, r.stored[r.next:r.here])
	r.next += n
	return n, nil
}
