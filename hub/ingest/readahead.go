package ingest

import (
	"context"
	"io"

	"lighter/hub/registry"
)

// readAhead reads from one goroutine what another one takes, a few blocks
// ahead: so decompressing, hashing and splitting overlap. Its memory is
// readAheadBlocks × readAheadBlock bytes.
type readAhead struct {
	ctx   context.Context
	full  chan block
	free  chan []byte
	taken func(b []byte) // sees each block once, in order, when it is taken
	now   block
	rest  []byte // of now
}

type block struct {
	buf []byte
	n   int
	err error
}

const (
	readAheadBlock  = 256 << 10
	readAheadBlocks = 6
)

// newReadAhead returns a reader of what fill delivers. The caller runs fill.
func newReadAhead(ctx context.Context, taken func(b []byte)) *readAhead {
	r := &readAhead{ctx: ctx, taken: taken,
		full: make(chan block, readAheadBlocks), free: make(chan []byte, readAheadBlocks)}
	for range readAheadBlocks {
		r.free <- nil // made when it is needed: many layers are small
	}
	return r
}

// fill reads from to its end. An error of from is what the reader gets; fill
// returns none but the context's, when the reader is gone.
func (r *readAhead) fill(from io.Reader) error {
	for {
		var buf []byte
		select {
		case buf = <-r.free:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
		if buf == nil {
			buf = make([]byte, readAheadBlock)
		}
		n, err := registry.ReadFull(from, buf)
		select {
		case r.full <- block{buf, n, err}:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
		if err != nil {
			return nil
		}
	}
}

// Read gives the bytes that fill has read.
func (r *readAhead) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.now.err != nil {
			return 0, r.now.err
		}
		if r.now.buf != nil {
			r.free <- r.now.buf // never waits: there is room for all of them
		}
		select {
		case r.now = <-r.full:
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
		r.rest = r.now.buf[:r.now.n]
		if r.taken != nil && r.now.n > 0 {
			r.taken(r.rest)
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
