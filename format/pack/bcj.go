package pack

import (
	"encoding/binary"
	"math/bits"
)

// The BCJ filter for x86 code: the distances of calls and jumps become addresses in the unit. Calls
// of one function then have the same bytes everywhere, and compress better. Filtering and
// unfiltering decide by bytes that neither changes, so the filter is exact for any bytes, code or
// not.
//
// A branch is E8 or E9 and four bytes, of which the last is 00 or FF. Other occurrences of E8 and
// E9 are skipped with their four bytes, which may be part of an instruction.

const branchLength = 5

// filter filters b in place, and reports whether b looks like code, so that the result is worth
// using. Of random bytes, one in 128 occurrences of E8 and E9 is a branch.
func filter(b []byte) (worthwhile bool) {
	candidates, branches := addPositions(b, 1)
	return branches*3 > candidates && branches*500 > len(b)
}

func unfilter(b []byte) { addPositions(b, -1) }

// addPositions adds the position of each branch to its distance, or subtracts it if sign is
// negative. It returns the numbers of bytes E8 and E9 it has seen, and of branches among them.
func addPositions(b []byte, sign int32) (candidates, branches int) {
	for i := nextCandidate(b, 0); i+branchLength <= len(b); i = nextCandidate(b, i+branchLength) {
		candidates++
		field := b[i+1 : i+branchLength]
		if field[3] != 0 && field[3] != 0xFF {
			continue
		}
		branches++
		v := int32(binary.LittleEndian.Uint32(field)) + sign*int32(i+branchLength)
		binary.LittleEndian.PutUint32(field, uint32(v<<7>>7)) // 25 bits: the last byte stays 00 or FF
	}
	return candidates, branches
}

// nextCandidate returns the position of the next E8 or E9 from i on, or the length of b. It looks
// at eight bytes at a time.
func nextCandidate(b []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])&(0xFE*ones) ^ 0xE8*ones
		if zeros := (x - ones) & ^x & tops; zeros != 0 { // its lowest bit is in the first zero byte of x
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
