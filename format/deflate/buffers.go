package deflate

import (
	"hash/crc32"
	"io"
)

// input is the compressed stream: a buffer of bytes, and a buffer of bits that were taken from it.
type input struct {
	src    io.Reader
	srcErr error // the source's, io.EOF at its end; nothing more comes from it

	buf  []byte
	base int64 // offset of buf[0] in the stream
	next int   // of buf: the first byte that is not in bits
	bits uint64
	n    uint // valid bits in bits; the others are zero
	skip uint // bits of the first byte that are not part of what is read
}

// fill reads until the buffer has at least 16 bytes, unless the source ends or fails before.
func (in *input) fill() {
	in.alignBits()
	if in.srcErr != nil {
		return
	}
	kept := copy(in.buf, in.buf[in.next:])
	in.base += int64(in.next)
	in.buf, in.next = in.buf[:kept], 0
	for empty := 0; len(in.buf) < fastInput && in.srcErr == nil; {
		n, err := in.src.Read(in.buf[len(in.buf):cap(in.buf)])
		in.buf, in.srcErr = in.buf[:len(in.buf)+n], err
		if n > 0 {
			empty = 0
		} else if empty++; empty == 100 && err == nil {
			in.srcErr = io.ErrNoProgress
		}
	}
	if in.skip > 0 && len(in.buf) > 0 {
		in.bits, in.n, in.next = uint64(in.buf[0])>>in.skip, 8-in.skip, 1
		in.skip = 0
	}
}

// alignBits returns whole bytes from the bit buffer to the byte buffer.
func (in *input) alignBits() {
	in.next -= int(in.n / 8)
	in.n %= 8
	in.bits &= 1<<in.n - 1
}

// need makes at least n bits available, n ≤ 56. It reports whether the source has them.
func (in *input) need(n uint) bool {
	for in.n < n {
		if in.next == len(in.buf) || in.skip > 0 {
			if in.srcErr != nil {
				return false
			}
			in.fill()
			continue
		}
		in.bits |= uint64(in.buf[in.next]) << in.n
		in.next++
		in.n += 8
	}
	return true
}

// take returns the next n bits, which need has made available.
func (in *input) take(n uint) uint32 {
	v := uint32(in.bits & (1<<n - 1))
	in.bits >>= n
	in.n -= n
	return v
}

// dropToByte skips the remaining bits of a byte.
func (in *input) dropToByte() { in.take(in.n % 8) }

// position returns the position of the next bit, as in a Checkpoint.
func (in *input) position() (offset int64, bits uint8) {
	return in.base + int64(in.next) - int64(in.n/8), uint8(in.n % 8)
}

// output is the plain bytes: the window, then bytes that were not read yet.
type output struct {
	buf   []byte
	base  int64 // offset of buf[0] in the plain stream
	read  int   // of buf: the first byte that was not read
	write int   // of buf: the end of the bytes
	first int   // of buf: the first byte to which a match may refer
}

// drop moves all positions after the first n bytes of the buffer were removed.
func (out *output) drop(n int) {
	out.base += int64(n)
	out.read -= n
	out.write -= n
	out.first = max(0, out.first-n)
}

// checksum is the CRC-32 and the length of a member's plain bytes.
type checksum struct {
	crc     uint32
	size    uint32 // modulo 2^32
	from    int    // of the output buffer: the first byte that is not counted yet
	unknown bool   // the member's beginning was not read
}

// add counts bytes, up to the end of the output.
func (c *checksum) add(output []byte) {
	if !c.unknown {
		c.crc = crc32.Update(c.crc, crc32.IEEETable, output[c.from:])
		c.size += uint32(len(output) - c.from)
	}
	c.from = len(output)
}
