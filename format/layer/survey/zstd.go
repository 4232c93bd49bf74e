package survey

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"lighter/format/compress"
)

// frames is a layer of zstd frames (RFC 8878).
type frames struct {
	places
	frame frame
	plain int64
	open  io.ReadCloser // the plain bytes of frame; nil between frames
}

func newFrames(blob *bufio.Reader) *frames { return &frames{frame: frame{blob: blob}} }

// Read implements io.Reader.
func (f *frames) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil {
		if f.open == nil {
			if err = f.next(); err != nil {
				return 0, err
			}
		}
		n, err = f.open.Read(p)
		f.plain += int64(n)
		if err == io.EOF {
			err = f.endFrame()
		}
	}
	return n, err
}

// next opens the next frame. It returns io.EOF at the end of the blob.
func (f *frames) next() error {
	at := f.frame.at
	window, err := f.frame.begin()
	if err != nil {
		return err
	}
	if window > maxDecoded {
		return &NoEntryError{f.plain, fmt.Sprintf("its zstd frame has a window of %d bytes", window)}
	}
	f.addEntry(entry{place: place{f.plain, at}})
	f.open, err = compress.ZstdPart(&f.frame)
	return err
}

func (f *frames) endFrame() error {
	err := f.open.Close()
	f.open = nil
	if !f.frame.done() {
		return errors.Join(err, errors.New("decompress: a zstd frame ends too early"))
	}
	f.addEnd(place{f.plain, f.frame.at})
	return err
}

// close implements stream.
func (f *frames) close() {}

// frame returns the bytes of one frame after the other.
type frame struct {
	blob     *bufio.Reader
	at       int64 // in the blob
	left     int64 // bytes of the frame's current part: its header, a block, or its checksum
	checksum bool  // follows the last block
	more     bool  // a block follows the current part
}

const (
	blockHeader  = 3
	checksumSize = 4
	blockRLE     = 1 // the type of blocks of one byte
)

// begin begins a frame and skips those that have no plain bytes before it. It returns the frame's
// window in bytes, or io.EOF.
func (f *frame) begin() (window uint64, err error) {
	var h zstd.Header
	for {
		b, err := f.blob.Peek(zstd.HeaderMaxSize)
		if len(b) == 0 {
			return 0, err
		}
		if err != nil && err != io.EOF {
			return 0, err
		}
		if err := h.Decode(b); err != nil {
			return 0, fmt.Errorf("decompress: the zstd frame at byte %d: %w", f.at, err)
		}
		if !h.Skippable {
			break
		}
		n := int64(h.HeaderSize) + int64(h.SkippableSize)
		skipped, err := io.CopyN(io.Discard, f.blob, n)
		if f.at += skipped; err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("decompress: a frame to skip: %w", err)
		}
	}
	f.left, f.more, f.checksum = int64(h.HeaderSize), true, h.HasCheckSum
	if h.SingleSegment {
		return h.FrameContentSize, nil
	}
	return h.WindowSize, nil
}

func (f *frame) done() bool { return f.left == 0 && !f.more && !f.checksum }

// Read implements io.Reader. It returns io.EOF at the end of the frame.
func (f *frame) Read(p []byte) (int, error) {
	if f.left == 0 {
		if err := f.part(); err != nil {
			return 0, err
		}
	}
	n, err := f.blob.Read(p[:min(int64(len(p)), f.left)])
	f.at += int64(n)
	f.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// part begins the next part of the frame.
func (f *frame) part() error {
	switch {
	case f.more:
		b, err := f.blob.Peek(blockHeader)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		header := int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16
		f.more = header&1 == 0
		f.left = blockHeader + header>>3
		if header>>1&3 == blockRLE {
			f.left = blockHeader + 1
		}
	case f.checksum:
		f.checksum = false
		f.left = checksumSize
	default:
		return io.EOF
	}
	return nil
}
