package ingest

import (
	"context"
	"io"
)

// readAhead passes bytes from one goroutine, which runs fill, to another one, which calls Read, a
// few blocks ahead. So decompression, hashing and splitting overlap. Its buffers have up to
// readAheadBlocks × readAheadBlock bytes.
type readAhead struct {
	ctx     context.Context
	full    chan block
	free    chan []byte
	onBlock func(b []byte) // receives each block once, in order, in the goroutine of Read
	current block
	rest    []byte // of current
}

type block struct {
	buf []byte
	n   int
	err error
}

const (
	readAheadBlock  = 256 << 10 // bytes of a block
	readAheadBlocks = 6
)

// newReadAhead returns a reader of what fill reads. The caller runs fill.
func newReadAhead(ctx context.Context, onBlock func(b []byte)) *readAhead {
	r := &readAhead{ctx: ctx, onBlock: onBlock,
		full: make(chan block, readAheadBlocks), free: make(chan []byte, readAheadBlocks)}
	for range readAheadBlocks {
		r.free <- nil // allocated when it is needed: many layers are small
	}
	return r
}

// fill reads from to its end. Read returns the error of from. fill returns an error only if the
// context has ended, because Read is not called any more then.
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
		n, err := readFull(from, buf)
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

// Read returns bytes that fill has read.
func (r *readAhead) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.current.err != nil {
			return 0, r.current.err
		}
		if r.current.buf != nil {
			r.free <- r.current.buf // never blocks: the channel holds all blocks
		}
		select {
		case r.current = <-r.full:
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
		r.rest = r.current.buf[:r.current.n]
		if r.current.n > 0 {
			r.onBlock(r.rest)
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// readFull reads until buf is full or from fails. Unlike io.ReadFull it returns the reader's error
// as it is, also io.EOF after some bytes.
func readFull(from io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = from.Read(buf[n:])
		n += k
	}
	return n, err
}
