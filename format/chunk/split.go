package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

// The splitting rule of format 1, in bytes. docs/format.md specifies it, and
// docs/decisions/chunk-size.md has the measurements.
const (
	// A hole is a run of at least zeroRun zeros, made of whole blocks of zeroBlock bytes. The
	// file's last block may be short. Runs below zeroRun stay in chunks: zstd compresses them to a
	// few bytes, and a hole would cost an extent.
	zeroBlock = 4096
	zeroRun   = 16 * zeroBlock

	// MaxLength bounds the length of a chunk.
	MaxLength = 1 << 20

	// ReadAhead is how many bytes of a file Split has read, and not yet passed to Emit, at most.
	ReadAhead = 4 * MaxLength

	smallFile = 64 << 10 // files up to this size are not split, except for holes
	largeFile = 64 << 20 // files above this size are split by largeRule
)

// rule has the parameters of FastCDC in bytes: no cut up to min, the strict mask up to avg, the
// loose mask from there, and a forced cut at max. strict has two bits more than avg needs, loose
// two fewer (normalization level 2). Both use the top bits of the hash, which depend on the last 64
// bytes.
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

// gear is FastCDC's table of 256 random words. gear[i] is the first eight bytes, little-endian, of
// SHA-256("lighter gear" ‖ byte i).
var gear = func() (t [256]uint64) {
	for i := range t {
		sum := sha256.Sum256(append([]byte("lighter gear"), byte(i)))
		t[i] = binary.LittleEndian.Uint64(sum[:])
	}
	return t
}()

// cut returns the length of the first chunk of b. b has the rest of the data up to the next hole,
// or its first max bytes.
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

// Splitter splits files. It keeps a buffer of 4 MiB between files, so it is for one goroutine at a
// time. The zero value is ready to use.
type Splitter struct{ buf []byte }

// Emit receives one piece of a file: the data of a chunk, which is valid only until Emit returns,
// or, if data is nil, the length of a hole in bytes.
type Emit func(data []byte, zeros int64) error

// Split reads exactly size bytes from r and calls emit for each piece of the file, in order. The
// error is io.ErrUnexpectedEOF if the file is shorter. The pieces depend only on the bytes, not on
// the sizes of r's reads.
func (s *Splitter) Split(r io.Reader, size int64, emit Emit) error {
	if size < 0 {
		return fmt.Errorf("split a file of %d bytes", size)
	}
	if s.buf == nil {
		s.buf = make([]byte, ReadAhead)
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

// window is the part of a file in memory.
type window struct {
	r          io.Reader
	left       int64 // bytes not yet read from r
	pos        int64 // offset of buf[start] in the file
	buf        []byte
	start, end int
}

func (w *window) bytes() []byte { return w.buf[w.start:w.end] }

func (w *window) advance(n int) { w.start += n; w.pos += int64(n) }

// fill reads until the window has the longest chunk and more than zeroRun bytes after it, or the
// rest of the file.
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

// isZero reports whether the file's block at buf[i] is all zeros. The file's last block may be
// shorter than the others.
func (w *window) isZero(i int) bool {
	n := w.end - i
	if n <= 0 || n < zeroBlock && w.left > 0 {
		return false
	}
	n = min(n, zeroBlock)
	return bytes.Equal(w.buf[i:i+n], zeroBytes[:n])
}

// zeroRunAt reports whether zeroRun zeros begin at buf[i], which is the start of a block.
func (w *window) zeroRunAt(i int) bool {
	// The last block is checked first: if it has data, the others need no check.
	for k := zeroRun/zeroBlock - 1; k >= 0; k-- {
		at := i + k*zeroBlock
		if w.end-at < zeroBlock || !w.isZero(at) {
			return false
		}
	}
	return true
}

// skipZeros skips a hole, if one begins at the window's start, and returns its length.
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

// dataLength returns the number of bytes before the next hole, at most limit.
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
