package pack

import (
	"encoding/binary"
	"math/bits"
)

// Where x86 code calls or jumps to, it says as a distance from there: the same
// function is another number wherever it is called. turn makes places of these
// distances, which then repeat, and turnBack distances of places. What they look at
// and do not change is the same for both, so they are exact for any bytes, code or
// not.
//
// A branch is E8 or E9 and four bytes, of which the last is 00 or FF; what looks like
// one without that is passed over too, since what follows may be a part of it.

const branchLength = 5

// turn makes places of distances, and tells whether that is worth it: whether b looks
// like code. Of random bytes one in 128 that looks like a branch ends with 00 or FF.
func turn(b []byte) (worth bool) {
	seen, turned := branches(b, 1)
	return turned*3 > seen && turned*500 > len(b)
}

func turnBack(b []byte) { branches(b, -1) }

// branches adds to each branch its own place, or takes it away, and counts them
// among all that look like one.
func branches(b []byte, sign int32) (seen, turned int) {
	for i := nextBranch(b, 0); i+branchLength <= len(b); i = nextBranch(b, i+branchLength) {
		seen++
		field := b[i+1 : i+branchLength]
		if field[3] != 0 && field[3] != 0xFF {
			continue
		}
		turned++
		v := int32(binary.LittleEndian.Uint32(field)) + sign*int32(i+branchLength)
		binary.LittleEndian.PutUint32(field, uint32(v<<7>>7)) // 25 bits: the last byte stays 00 or FF
	}
	return seen, turned
}

// nextBranch returns the first place from i on where there is E8 or E9, or the length
// of b. It looks at eight bytes at a time.
func nextBranch(b []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])&(0xFE*ones) ^ 0xE8*ones
		if zeros := (x - ones) & ^x & tops; zeros != 0 { // its lowest bit is that of the first byte that is 0
			return i + bits.TrailingZeros64(zeros)/8
		}
	}
	for ; i < len(b); i++ {
		if b[i]&0xFE == 0xE8 {
			return i
		}
	}
	return len(b)
}
