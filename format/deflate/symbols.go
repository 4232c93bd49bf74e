package deflate

import "encoding/binary"

// fastInput is how many bytes of input an iteration of fast reads at most.
const fastInput = 16

// symbols decodes symbols until the block ends or the output is full.
func (r *Reader) symbols() error {
	for r.write < fullOutput {
		if len(r.input.buf)-r.input.next < fastInput {
			r.fill()
		}
		var ended bool
		var err error
		if len(r.input.buf)-r.input.next >= fastInput {
			ended, err = r.fast()
		} else {
			ended, err = r.slow()
		}
		if err != nil {
			return err
		}
		if ended {
			return r.end()
		}
	}
	return nil
}

// slow decodes one symbol, near the end of the input. It reports whether the block has ended.
func (r *Reader) slow() (ended bool, err error) {
	r.need(48) // of a length, a distance and their extra bits; there may be less
	e, ok := r.symbol(r.lit[:], litBits)
	switch {
	case !ok:
		return false, r.truncated()
	case e&entryInvalid != 0:
		return false, r.corrupt("invalid code for a literal or a length")
	case e&entryEnd != 0:
		return true, nil
	case e&entryLiteral != 0:
		r.output.buf[r.write] = byte(e >> entryValueShift)
		r.write++
		return false, nil
	}
	length := r.value(e)
	e, ok = r.symbol(r.dist[:], distBits)
	switch {
	case !ok:
		return false, r.truncated()
	case e&entryInvalid != 0:
		return false, r.corrupt("invalid code for a distance")
	}
	return false, r.match(length, r.value(e))
}

// symbol returns the entry of the next symbol and consumes its code, but not its extra bits. It
// reports whether there are enough bits for both.
func (r *Reader) symbol(table []uint32, index uint) (uint32, bool) {
	e := table[r.bits&(1<<index-1)]
	if e&entrySubtable != 0 && r.n >= index {
		r.take(index)
		size := e >> entryLengthShift & entryLengthMask
		e = table[uint64(e>>entryValueShift)+r.bits&(1<<size-1)]
	}
	if r.n < uint(e&entryTotal) {
		return 0, false
	}
	r.take(uint(e >> entryLengthShift & entryLengthMask))
	return e, true
}

// value consumes an entry's extra bits and returns its length or distance.
func (r *Reader) value(e uint32) int {
	extra := uint(e&entryTotal) - uint(e>>entryLengthShift&entryLengthMask)
	return int(e>>entryValueShift&entryValueMask) + int(r.take(extra))
}

// match repeats earlier output.
func (r *Reader) match(length, distance int) error {
	if distance > r.write-r.first {
		return r.corrupt("a distance leads to before the beginning")
	}
	if r.write-distance < r.tracked.at {
		r.tracked.match(r.write-distance, length)
	}
	copyMatch(r.output.buf, r.write, length, distance)
	r.write += length
	return nil
}

// fast decodes symbols while there are fastInput bytes of input and room in the output. It reports
// whether the block has ended. It keeps all positions in local variables.
func (r *Reader) fast() (ended bool, err error) {
	in, out := r.input.buf, r.output.buf
	next, write, first := r.input.next, r.write, r.first
	bits, n := r.bits, r.n
	lit, dist := r.lit, r.dist
	tracked := r.tracked.at
	lastNext := len(in) - fastInput
	what := ""
	for next <= lastNext && write < fullOutput {
		bits |= binary.LittleEndian.Uint64(in[next:]) << (n & 63)
		next += int(63-n) >> 3
		n |= 56
		e := lit[bits&(1<<litBits-1)]
		if e&entryLiteral != 0 {
			bits >>= e & entryTotal
			n -= uint(e & entryTotal)
			out[write] = byte(e >> entryValueShift)
			write++
			e = lit[bits&(1<<litBits-1)]
			if e&entryLiteral != 0 {
				bits >>= e & entryTotal
				n -= uint(e & entryTotal)
				out[write] = byte(e >> entryValueShift)
				write++
				e = lit[bits&(1<<litBits-1)]
				if e&entryLiteral != 0 {
					bits >>= e & entryTotal
					n -= uint(e & entryTotal)
					out[write] = byte(e >> entryValueShift)
					write++
					continue
				}
			}
		}
		// At least 56-2*11 bits are left, and a code with its extra bits has at most 20.
		if e&entryOther != 0 {
			if e&entrySubtable != 0 {
				bits >>= litBits
				n -= litBits
				size := e >> entryLengthShift & entryLengthMask
				e = lit[(uint64(e>>entryValueShift)+bits&(1<<size-1))&(uint64(len(lit))-1)]
			}
			if e&entryLiteral != 0 {
				bits >>= e & entryTotal
				n -= uint(e & entryTotal)
				out[write] = byte(e >> entryValueShift)
				write++
				continue
			}
			if e&entryEnd != 0 {
				bits >>= e & entryTotal
				n -= uint(e & entryTotal)
				ended = true
				break
			}
			if e&entryInvalid != 0 {
				what = "invalid code for a literal or a length"
				break
			}
		}
		length := int(e>>entryValueShift) + int(bits&(1<<(e&entryTotal)-1)>>(e>>entryLengthShift&entryLengthMask))
		bits >>= e & entryTotal
		n -= uint(e & entryTotal)

		bits |= binary.LittleEndian.Uint64(in[next:]) << (n & 63)
		next += int(63-n) >> 3
		n |= 56
		e = dist[bits&(1<<distBits-1)]
		if e&entrySubtable != 0 {
			bits >>= distBits
			n -= distBits
			size := e >> entryLengthShift & entryLengthMask
			e = dist[(uint64(e>>entryValueShift)+bits&(1<<size-1))&(uint64(len(dist))-1)]
		}
		if e&entryInvalid != 0 {
			what = "invalid code for a distance"
			break
		}
		distance := int(e>>entryValueShift) + int(bits&(1<<(e&entryTotal)-1)>>(e>>entryLengthShift&entryLengthMask))
		bits >>= e & entryTotal
		n -= uint(e & entryTotal)
		if distance > write-first {
			what = "a distance leads to before the beginning"
			break
		}
		if write-distance < tracked {
			r.tracked.match(write-distance, length)
		}
		copyMatch(out, write, length, distance)
		write += length
	}
	r.input.next, r.write = next, write
	r.bits, r.n = bits&(1<<n-1), n
	if what != "" {
		return false, r.corrupt(what)
	}
	return ended, nil
}

// copyMatch copies length bytes from distance bytes before out[at:] to there. It may overwrite up
// to 15 bytes behind them, which out must have.
func copyMatch(out []byte, at, length, distance int) {
	from := at - distance
	end := at + length
	if distance >= 8 {
		for at < end { // once for most matches
			src, dst := out[from:from+16], out[at:at+16]
			binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src))
			binary.LittleEndian.PutUint64(dst[8:], binary.LittleEndian.Uint64(src[8:])) // src may end in dst
			at += 16
			from += 16
		}
		return
	}
	for ; at < end; at++ {
		out[at] = out[from]
		from++
	}
}
