package deflate

// Kinds of blocks.
const (
	kindStored  = 0
	kindFixed   = 1
	kindDynamic = 2
)

// block reads the header of a block.
func (r *Reader) block() error {
	if !r.need(3) {
		return r.truncated()
	}
	r.final = r.take(1) == 1
	switch r.take(2) {
	case kindStored:
		return r.storedHeader()
	case kindFixed:
		fixed := fixedTables()
		r.lit, r.dist = &fixed.lit, &fixed.dist
	case kindDynamic:
		if err := r.readTables(); err != nil {
			return err
		}
		r.lit, r.dist = &r.dynamic.lit, &r.dynamic.dist
	default:
		return r.corrupt("unknown kind of block")
	}
	r.state = inSymbols
	return nil
}

func (r *Reader) storedHeader() error {
	r.dropToByte()
	if !r.need(32) {
		return r.truncated()
	}
	length, complement := r.take(16), r.take(16)
	if length != ^complement&0xffff {
		return r.corrupt("the length of a stored block does not match its complement")
	}
	r.left = int(length)
	r.state = inStored
	return nil
}

// stored copies bytes of a stored block until it ends or the output is full.
func (r *Reader) stored() error {
	r.alignBits() // the position is the beginning of a byte
	for r.left > 0 && r.write < fullOutput {
		if r.input.next == len(r.input.buf) {
			r.fill()
			if r.input.next == len(r.input.buf) {
				return r.truncated()
			}
		}
		n := min(r.left, fullOutput-r.write)
		n = copy(r.output.buf[r.write:r.write+n], r.input.buf[r.input.next:])
		r.input.next += n
		r.write += n
		r.left -= n
	}
	if r.left > 0 {
		return nil
	}
	return r.end()
}

const (
	maxLitCodes  = 286
	maxDistCodes = 30
)

// codeOrder is the order in which a block's header has the lengths of the codes for lengths.
var codeOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// readTables reads the codes of a dynamic block.
func (r *Reader) readTables() error {
	if !r.need(14) {
		return r.truncated()
	}
	lits, dists, codes := int(r.take(5))+257, int(r.take(5))+1, int(r.take(4))+4
	if lits > maxLitCodes || dists > maxDistCodes {
		return r.corrupt("too many codes")
	}
	var codeLengths [19]uint8
	for _, symbol := range codeOrder[:codes] {
		if !r.need(3) {
			return r.truncated()
		}
		codeLengths[symbol] = uint8(r.take(3))
	}
	d := &r.dynamic
	if !build(d.code[:], codeBits, codeLengths[:], codeSymbols[:]) {
		return r.corrupt("invalid code for the lengths of codes")
	}
	var lengths [maxLitCodes + maxDistCodes]uint8
	if err := r.readLengths(lengths[:lits+dists]); err != nil {
		return err
	}
	switch {
	case lengths[endOfBlock] == 0:
		return r.corrupt("no code for the end of the block")
	case !build(d.lit[:], litBits, lengths[:lits], litSymbols[:]):
		return r.corrupt("invalid code for literals and lengths")
	case !build(d.dist[:], distBits, lengths[lits:lits+dists], distSymbols[:]):
		return r.corrupt("invalid code for distances")
	}
	return nil
}

// readLengths reads the lengths of codes, which are themselves coded.
func (r *Reader) readLengths(lengths []uint8) error {
	for i := 0; i < len(lengths); {
		r.need(14) // the longest code with its repetition; near the end of the input there may be less
		e := r.dynamic.code[r.bits&(1<<codeBits-1)]
		if e&entryInvalid != 0 {
			return r.corrupt("invalid code for the length of a code")
		}
		if r.n < uint(e&entryTotal) {
			return r.truncated()
		}
		length := uint(e >> entryLengthShift & entryLengthMask)
		r.take(length)
		symbol := uint8(e >> entryValueShift)
		if symbol < 16 {
			lengths[i] = symbol
			i++
			continue
		}
		repeat, value := 3+int(r.take(uint(e&entryTotal)-length)), uint8(0)
		switch symbol {
		case 16:
			if i == 0 {
				return r.corrupt("the first length of a code repeats the previous one")
			}
			value = lengths[i-1]
		case 18:
			repeat += 8
		}
		if i+repeat > len(lengths) {
			return r.corrupt("too many lengths of codes")
		}
		for range repeat {
			lengths[i] = value
			i++
		}
	}
	return nil
}
