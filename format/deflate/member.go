package deflate

import (
	"hash/crc32"
	"io"
)

// Flags in the header of a member.
const (
	flagHeaderCRC = 1 << 1
	flagExtra     = 1 << 2
	flagName      = 1 << 3
	flagComment   = 1 << 4
	flagReserved  = 0xe0
)

// maxHeaderString bounds a name or a comment, with its NUL, as compress/gzip does.
const maxHeaderString = 512

// header reads the header of a member. It returns io.EOF if there is no further one.
func (r *Reader) header() error {
	if r.input.base+int64(r.input.next) > 0 && !r.need(8) && r.srcErr == io.EOF {
		return io.EOF
	}
	crc := uint32(0)
	fixed := [10]byte{}
	for i := range fixed {
		if err := r.headerByte(&fixed[i], &crc); err != nil {
			return err
		}
	}
	flags := fixed[3]
	switch {
	case fixed[0] != 0x1f || fixed[1] != 0x8b:
		return r.corrupt("no gzip header")
	case fixed[2] != 8:
		return r.corrupt("unknown compression method")
	case flags&flagReserved != 0:
		return r.corrupt("reserved flags in a gzip header")
	}
	if err := r.optional(flags, &crc); err != nil {
		return err
	}
	r.first = r.write
	r.sum = checksum{from: r.write}
	return r.begin()
}

// optional skips the optional parts of a header, and checks the header's checksum.
func (r *Reader) optional(flags byte, crc *uint32) error {
	if flags&flagExtra != 0 {
		var low, high, skipped byte
		if err := r.headerByte(&low, crc); err != nil {
			return err
		}
		if err := r.headerByte(&high, crc); err != nil {
			return err
		}
		for range int(high)<<8 | int(low) {
			if err := r.headerByte(&skipped, crc); err != nil {
				return err
			}
		}
	}
	for _, flag := range [...]byte{flagName, flagComment} {
		if flags&flag == 0 {
			continue
		}
		if err := r.headerString(crc); err != nil {
			return err
		}
	}
	if flags&flagHeaderCRC == 0 {
		return nil
	}
	if !r.need(16) {
		return r.truncated()
	}
	if r.take(16) != *crc&0xffff {
		return r.corrupt("wrong checksum of a gzip header")
	}
	return nil
}

func (r *Reader) headerString(crc *uint32) error {
	for range maxHeaderString {
		var b byte
		if err := r.headerByte(&b, crc); err != nil || b == 0 {
			return err
		}
	}
	return r.corrupt("a name or a comment of a gzip header is too long")
}

func (r *Reader) headerByte(b *byte, crc *uint32) error {
	if !r.need(8) {
		return r.truncated()
	}
	*b = byte(r.take(8))
	*crc = crc32.Update(*crc, crc32.IEEETable, []byte{*b})
	return nil
}

// trailer reads and checks what follows the last block of a member.
func (r *Reader) trailer() error {
	r.dropToByte()
	r.sum.add(r.output.buf[:r.write])
	var fields [2]uint32
	for i := range fields {
		if !r.need(32) {
			return r.truncated()
		}
		fields[i] = r.take(32)
	}
	switch {
	case r.sum.unknown:
	case fields[0] != r.sum.crc:
		return r.corrupt("wrong checksum of the plain bytes")
	case fields[1] != r.sum.size:
		return r.corrupt("wrong length of the plain bytes")
	}
	r.state = atHeader
	return nil
}
