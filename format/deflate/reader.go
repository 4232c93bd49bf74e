package deflate

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// WindowSize is the largest distance to which a deflate block refers, in bytes.
	WindowSize = 32 << 10

	// ReadAhead bounds how many bytes a Reader has read from its source and not decoded yet.
	ReadAhead = 64 << 10

	fullOutput = WindowSize + 64<<10   // an output buffer with so many bytes is full
	outputSize = fullOutput + 258 + 64 // the longest match, and what copyMatch writes too far
)

// A Checkpoint is the beginning of a deflate block.
type Checkpoint struct {
	// In is the offset in the compressed stream of the first byte all of whose bits belong to the
	// block or to what follows it.
	In int64
	// Bits is how many of the highest bits of the byte before In belong to the block, 0 to 7.
	Bits uint8
	// Out is the offset in the plain stream.
	Out int64
	// Window is the min(Out, WindowSize) plain bytes before Out.
	Window []byte
}

// Start returns the offset of the first compressed byte that Resume needs.
func (c Checkpoint) Start() int64 {
	if c.Bits > 0 {
		return c.In - 1
	}
	return c.In
}

// A CorruptError says where a stream is not valid gzip.
type CorruptError struct {
	Offset int64  // in the compressed stream: of the first byte that was not decoded, or near it
	What   string // the part of the format that is invalid
}

func (e *CorruptError) Error() string {
	return "gzip stream is corrupt near byte " + strconv.FormatInt(e.Offset, 10) + ": " + e.What
}

// state says which part of a stream comes next.
type state uint8

const (
	atHeader state = iota // of a member
	atBlock
	inStored
	inSymbols
	atTrailer // of a member
)

// Reader returns the plain bytes of a gzip stream. It is for one goroutine at a time.
type Reader struct {
	input
	output
	state state
	final bool // the current block is the last one of its member
	left  int  // bytes of the current stored block

	sum     checksum
	lit     *litTable
	dist    *distTable
	dynamic tables // of the current block, if it has its own

	report  func(Checkpoint) error
	spacing int64
	last    int64 // Out of the last checkpoint
	tracked tracked

	err error // of all calls after the remaining output was read
}

// NewReader returns a reader of the plain bytes of src, a gzip stream. It reads ahead of what it
// has decoded.
func NewReader(src io.Reader) *Reader {
	r := &Reader{input: input{buf: make([]byte, 0, ReadAhead)}, output: output{buf: make([]byte, outputSize)}}
	r.Reset(src)
	return r
}

// Reset makes r what NewReader returns, without new memory.
func (r *Reader) Reset(src io.Reader) {
	r.input = input{src: src, buf: r.input.buf[:0]}
	r.output = output{buf: r.output.buf}
	r.state, r.final, r.left = atHeader, false, 0
	r.sum, r.lit, r.dist = checksum{}, nil, nil
	r.report, r.spacing, r.last, r.tracked = nil, 0, 0, tracked{}
	r.err = nil
}

// NewIndexer returns a Reader that also calls report for checkpoints, in order. Each is more than
// spacing plain bytes behind the previous one. The first one is at the first block. Blocks at which
// no plain byte has come yet all have a checkpoint, whatever the spacing. These are exactly the
// checkpoints of SOCI 0.15, for a span size of spacing.
//
// The Reader calls report while it decodes, which is up to 64 KiB before its caller reads the bytes
// there. The window is valid only during the call. An error of report ends the reading: the Reader
// returns the plain bytes before the checkpoint, and then the error.
func NewIndexer(src io.Reader, spacing int64, report func(Checkpoint) error) *Reader {
	r := NewReader(src)
	r.spacing, r.report = spacing, report
	return r
}

// Resume returns a Reader as its method Resume makes it.
func Resume(src io.Reader, c Checkpoint) (*Reader, error) {
	r := NewReader(nil)
	return r, r.Resume(src, c)
}

// Resume makes r a Reader of the plain bytes from c.Out on, without new memory. src returns the
// compressed bytes from c.Start() on. It may end early: plain bytes for which it suffices are
// returned before the error, which wraps io.ErrUnexpectedEOF. Offsets in errors are those of the
// whole stream.
func (r *Reader) Resume(src io.Reader, c Checkpoint) error {
	if c.Bits > 7 || c.Start() < 0 || c.Out < 0 || len(c.Window) > WindowSize || int64(len(c.Window)) > c.Out {
		return fmt.Errorf("checkpoint at byte %d, plain byte %d, with %d bits and a window of %d bytes is invalid",
			c.In, c.Out, c.Bits, len(c.Window))
	}
	r.Reset(src)
	r.state = atBlock
	r.input.base, r.input.skip = c.Start(), uint(8-c.Bits)%8
	n := copy(r.output.buf, c.Window)
	r.read, r.write, r.sum.from = n, n, n
	r.output.base = c.Out - int64(n)
	r.sum.unknown = true
	return nil
}

// Read implements io.Reader. The error is io.EOF at the end of a valid stream. It is a
// *CorruptError, wraps io.ErrUnexpectedEOF if the stream ends too early, or wraps an error of the
// source or of the function that takes checkpoints.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.read == r.write {
		if r.err != nil {
			return 0, r.err
		}
		r.makeRoom()
		r.err = r.decode()
		r.sum.add(r.output.buf[:r.write])
	}
	n := copy(p, r.output.buf[r.read:r.write])
	r.read += n
	return n, nil
}

// makeRoom drops output that was read and is no longer in the window.
func (r *Reader) makeRoom() {
	drop := r.write - WindowSize
	if r.write < fullOutput || drop <= 0 {
		return
	}
	copy(r.output.buf, r.output.buf[drop:r.write])
	r.output.drop(drop)
	r.sum.from -= drop
	r.tracked.at -= drop
}

// decode decodes until the output buffer is full. It returns io.EOF at the end of the stream.
func (r *Reader) decode() error {
	for r.write < fullOutput {
		var err error
		switch r.state {
		case atHeader:
			err = r.header()
		case atBlock:
			err = r.block()
		case inStored:
			err = r.stored()
		case inSymbols:
			err = r.symbols()
		case atTrailer:
			err = r.trailer()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin is called at the beginning of each block: after a header, and after a block that is not the
// last one of its member.
func (r *Reader) begin() error {
	r.state = atBlock
	out := r.output.base + int64(r.write)
	if r.report == nil || out != 0 && out-r.last <= r.spacing {
		return nil
	}
	r.last = out
	in, bits := r.position()
	window := r.output.buf[max(0, r.write-WindowSize):r.write]
	if err := r.report(Checkpoint{In: in, Bits: bits, Out: out, Window: window}); err != nil {
		return fmt.Errorf("checkpoint at plain byte %d: %w", out, err)
	}
	return nil
}

// end is called at the end of each block.
func (r *Reader) end() error {
	if r.final {
		r.state = atTrailer
		return nil
	}
	return r.begin()
}

func (r *Reader) corrupt(what string) error {
	in, _ := r.position()
	return &CorruptError{in, what}
}

// truncated returns the error for input that has ended before what it needs.
func (r *Reader) truncated() error {
	if !errors.Is(r.srcErr, io.EOF) {
		return r.srcErr
	}
	return fmt.Errorf("gzip stream ends after byte %d: %w", r.input.base+int64(len(r.input.buf)), io.ErrUnexpectedEOF)
}
