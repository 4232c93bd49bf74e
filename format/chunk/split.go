package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

// The splitting rule, format 1. docs/format.md states it in words and
// docs/decisions/chunk-size.md has the measurements behind the numbers.
const (
	// zeroBlock is the granularity, aligned to the file's start, at which
	// zeros are looked for; zeroRun is the shortest run that leaves a hole in
	// place of chunks. Shorter runs stay in the data: cutting there would cost
	// an extent and win nothing, for zstd turns them into a few bytes.
	zeroBlock = 4096
	zeroRun   = 16 * zeroBlock

	// MaxLength bounds every chunk, of either rule, in bytes.
	MaxLength = 1 << 20

	// smallFile is the size up to which a file is one chunk, and largeFile the
	// size above which the rule for large files applies.
	smallFile = 64 << 10
	largeFile = 64 << 20
)

// rule is one set of FastCDC parameters: no cut before min, a strict mask up
// to avg, a loose one from there, a forced cut at max. strict has two bits
// more than the average asks for, loose two fewer (FastCDC's normalisation
// level 2), both taken from the top of the hash, which has seen 64 bytes.
type rule struct {
	min, avg, max int
	strict, loose uint64
}

func newRule(minLength, avgBits, maxLength int) rule {
	top := func(n int) uint64 { return ^uint64(0) << (64 - n) }
	return rule{min: minLength, avg: 1 << avgBits, max: maxLength, strict: top(avgBits + 2), loose: top(avgBits - 2)}
}

var (
	wholeRule  = rule{min: smallFile, max: smallFile}
	mediumRule = newRule(16<<10, 16, 256<<10)
	largeRule  = newRule(64<<10, 18, MaxLength)
)

func ruleFor(size int64) rule {
	switch {
	case size <= smallFile:
		return wholeRule
	case size <= largeFile:
		return mediumRule
	}
	return largeRule
}

// gear is FastCDC's table of 256 random words. It is made from SHA-256 so that
// it can be written down in a line: gear[i] is the first eight bytes,
// little-endian, of SHA-256("lighter gear" ‖ byte i).
var gear = func() (t [256]uint64) {
	for i := range t {
		sum := sha256.Sum256(append([]byte("lighter gear"), byte(i)))
		t[i] = binary.LittleEndian.Uint64(sum[:])
	}
	return t
}()

// cut returns the length of the first chunk of b. All that is left of the run
// must be in b, or at least r.max bytes of it.
func (r rule) cut(b []byte) int {
	n := min(len(b), r.max)
	if n <= r.min {
		return n
	}
	var h uint64
	i := r.min
	for normal := min(n, r.avg); i < normal; i++ {
		h = h<<1 + gear[b[i]]
		if h&r.strict == 0 {
			return i + 1
		}
	}
	for ; i < n; i++ {
		h = h<<1 + gear[b[i]]
		if h&r.loose == 0 {
			return i + 1
		}
	}
	return n
}

// A Splitter splits files. It holds a buffer of a few megabytes that is used
// again for each file, so it serves one goroutine at a time. The zero value is
// ready to use.
type Splitter struct{ buf []byte }

// Emit takes one piece of a file: either data, which is one chunk and valid
// only until Emit returns, or (data nil) a run of zeros, in bytes.
type Emit func(data []byte, zeros int64) error

// Split reads exactly size bytes from r and hands the pieces of the file to
// emit, in order. A file that ends early is io.ErrUnexpectedEOF. The same bytes
// always give the same pieces, however r delivers them.
func (s *Splitter) Split(r io.Reader, size int64, emit Emit) error {
	if size < 0 {
		return fmt.Errorf("split a file of %d bytes", size)
	}
	if s.buf == nil {
		s.buf = make([]byte, 4*MaxLength)
	}
	w := window{r: r, left: size, buf: s.buf}
	rule := ruleFor(size)
	for {
		if err := w.fill(); err != nil {
			return err
		}
		b := w.bytes()
		if len(b) == 0 {
			return nil
		}
		if zeros, err := w.skipZeros(); err != nil {
			return err
		} else if zeros > 0 {
			if err := emit(nil, zeros); err != nil {
				return err
			}
			continue
		}
		n := rule.cut(b[:w.dataLength(rule.max)])
		if err := emit(b[:n], 0); err != nil {
			return err
		}
		w.advance(n)
	}
}

// window is the part of a file that is in memory.
type window struct {
	r          io.Reader
	left       int64 // not yet read from r
	pos        int64 // offset of buf[start] in the file
	buf        []byte
	start, end int
}

func (w *window) bytes() []byte { return w.buf[w.start:w.end] }

func (w *window) advance(n int) { w.start += n; w.pos += int64(n) }

// fill makes sure that the window holds a longest chunk and a longest run of
// zeros behind it, or all that is left.
func (w *window) fill() error {
	if w.left == 0 || w.end-w.start >= MaxLength+zeroRun+2*zeroBlock {
		return nil
	}
	w.end = copy(w.buf, w.bytes())
	w.start = 0
	n := int(min(int64(len(w.buf)-w.end), w.left))
	if _, err := io.ReadFull(w.r, w.buf[w.end:w.end+n]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	w.end += n
	w.left -= int64(n)
	return nil
}

var zeroBytes [zeroBlock]byte

// isZero tells whether the block of the file at buf offset i is all zeros. Only
// whole blocks count, and the file's last one, however short.
func (w *window) isZero(i int) bool {
	n := w.end - i
	if n <= 0 || n < zeroBlock && w.left > 0 {
		return false
	}
	n = min(n, zeroBlock)
	return bytes.Equal(w.buf[i:i+n], zeroBytes[:n])
}

// zeroRunAt tells whether a run of at least zeroRun zeros starts at buf offset
// i, which must be aligned in the file.
func (w *window) zeroRunAt(i int) bool {
	// The last block first: in ordinary data it decides at once.
	for k := zeroRun/zeroBlock - 1; k >= 0; k-- {
		at := i + k*zeroBlock
		if at >= w.end || w.end-at < zeroBlock || !w.isZero(at) {
			return false
		}
	}
	return true
}

// skipZeros moves past a run of zeros that starts here, if one does, and
// returns its length.
func (w *window) skipZeros() (int64, error) {
	if w.pos%zeroBlock != 0 || !w.zeroRunAt(w.start) {
		return 0, nil
	}
	from := w.pos
	for w.isZero(w.start) {
		w.advance(min(zeroBlock, w.end-w.start))
		if err := w.fill(); err != nil {
			return 0, err
		}
	}
	return w.pos - from, nil
}

// dataLength returns how many bytes from here, at most limit, come before the
// next long run of zeros.
func (w *window) dataLength(limit int) int {
	n := min(limit, w.end-w.start)
	first := int((zeroBlock - w.pos%zeroBlock) % zeroBlock)
	for i := first; i < n; i += zeroBlock {
		if w.zeroRunAt(w.start + i) {
			return i
		}
	}
	return n
}
