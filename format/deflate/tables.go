package deflate

import (
	"math/bits"
	"sync"
)

// A table maps the next bits of the input to an entry. An entry has these parts, from its lowest
// bit: how many bits to consume, including extra bits (5); flags (3); how many of them are the
// code's (4); unused (4); the value (15); the flag of a literal (1).
//
// Codes that are longer than a table's index lead to an entry with entrySubtable. Its value is the
// index of a further table in the same array, which has the codes' remaining bits. Its length is
// the number of bits of that table's index.
const (
	entryTotal       = 0x1f
	entrySubtable    = 1 << 5
	entryEnd         = 1 << 6 // the end of the block
	entryInvalid     = 1 << 7
	entryLengthShift = 8
	entryLengthMask  = 0xf
	entryValueShift  = 16
	entryValueMask   = 0x7fff
	entryLiteral     = 1 << 31

	entryOther = entrySubtable | entryEnd | entryInvalid
)

const (
	maxCodeLength = 15
	endOfBlock    = 256

	litBits  = 11 // bits of a table's index
	distBits = 8
	codeBits = 7 // no code is longer, so there are no subtables
)

// Sizes of the arrays. zlib's enough.c computes how many entries a table and its subtables need at
// most: 2,342 and 402 for codes that are complete. A power of two needs no checks of bounds.
type (
	litTable  [4096]uint32
	distTable [512]uint32
)

type tables struct {
	lit  litTable
	dist distTable
	code [1 << codeBits]uint32
}

// Entries by symbol, without the bits of the code.
var (
	litSymbols  = makeLitSymbols()
	distSymbols = makeDistSymbols()
	codeSymbols = makeCodeSymbols()
)

func makeLitSymbols() (symbols [288]uint32) {
	for i := range 256 {
		symbols[i] = entryLiteral | uint32(i)<<entryValueShift
	}
	symbols[endOfBlock] = entryEnd
	length := uint32(3)
	for i := 257; i < 285; i++ {
		extra := uint32(max(0, (i-261)/4))
		symbols[i] = length<<entryValueShift | extra
		length += 1 << extra
	}
	symbols[285] = 258 << entryValueShift
	symbols[286], symbols[287] = entryInvalid, entryInvalid
	return symbols
}

func makeDistSymbols() (symbols [32]uint32) {
	distance := uint32(1)
	for i := range maxDistCodes {
		extra := uint32(max(0, (i-2)/2))
		symbols[i] = distance<<entryValueShift | extra
		distance += 1 << extra
	}
	symbols[30], symbols[31] = entryInvalid, entryInvalid
	return symbols
}

func makeCodeSymbols() (symbols [19]uint32) {
	for i := range symbols {
		symbols[i] = uint32(i) << entryValueShift
	}
	symbols[16] |= 2
	symbols[17] |= 3
	symbols[18] |= 7
	return symbols
}

// fixedTables returns the tables of blocks with the fixed codes.
var fixedTables = sync.OnceValue(func() *tables {
	t := &tables{}
	lengths := [288]uint8{}
	for i := range lengths {
		switch {
		case i < 144 || i >= 280:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		default:
			lengths[i] = 7
		}
	}
	build(t.lit[:], litBits, lengths[:], litSymbols[:])
	lengths = [288]uint8{}
	for i := range 32 {
		lengths[i] = 5
	}
	build(t.dist[:], distBits, lengths[:32], distSymbols[:])
	return t
})

// build makes the table of a canonical Huffman code. lengths has the length of each symbol's code,
// and zero for symbols without a code. It reports whether the code is valid: it is complete, has a
// single code of one bit, or has no code at all. As in zlib, the latter two are errors only when a
// stream uses what has no code.
func build(table []uint32, index uint, lengths []uint8, symbols []uint32) bool {
	var count [maxCodeLength + 1]int
	for _, l := range lengths {
		count[l]++
	}
	used := len(lengths) - count[0]
	count[0] = 0
	left := 1 // unused codes of the current length
	longest := 0
	var first [maxCodeLength + 2]int // by length: position of the first symbol in sorted
	for l := 1; l <= maxCodeLength; l++ {
		left = left<<1 - count[l]
		if left < 0 {
			return false
		}
		if count[l] > 0 {
			longest = l
		}
		first[l+1] = first[l] + count[l]
	}
	if left > 0 {
		if used > 1 || used == 1 && longest != 1 {
			return false
		}
		table[0] = entryInvalid | 1
	}
	var sorted [288]uint16
	for symbol, l := range lengths {
		if l > 0 {
			sorted[first[l]] = uint16(symbol)
			first[l]++
		}
	}
	b := builder{table: table, index: index, count: count, free: 1 << index}
	code, previous := uint32(0), uint(0)
	for _, symbol := range sorted[:used] {
		l := uint(lengths[symbol])
		code <<= l - previous
		previous = l
		b.add(uint32(bits.Reverse16(uint16(code)))>>(16-l), l, symbols[symbol])
		code++
		b.count[l]--
	}
	b.double(index)
	return true
}

// builder fills a table, code by code in canonical order, so that the lengths of codes grow.
type builder struct {
	table []uint32
	index uint
	count [maxCodeLength + 1]int // of codes that were not added yet, by length

	known uint // bits of the index that codes so far depend on; 1<<known entries are filled

	free   int    // of the table: the first entry that no table has
	prefix uint32 // of the current subtable
	start  int    // of the current subtable
	size   uint   // bits of the current subtable's index; 0: there is none
}

// add adds a code, given as the bits of the input, the first one lowest.
func (b *builder) add(code uint32, length uint, entry uint32) {
	b.double(min(length, b.index))
	if length <= b.index {
		b.table[code] = entry + (uint32(length)<<entryLengthShift | uint32(length))
		return
	}
	prefix := code & (1<<b.index - 1)
	if b.size == 0 || prefix != b.prefix {
		b.subtable(prefix, length)
	}
	rest := length - b.index
	entry += uint32(rest)<<entryLengthShift | uint32(rest)
	for i := code >> b.index; i < 1<<b.size; i += 1 << rest {
		b.table[b.start+int(i)] = entry
	}
}

// double repeats the filled entries for further bits of the index.
func (b *builder) double(bits uint) {
	for ; b.known < bits; b.known++ {
		copy(b.table[1<<b.known:], b.table[:1<<b.known])
	}
}

// subtable begins a subtable for codes with the prefix, of which the first has this length. Its
// index has enough bits for all of them.
func (b *builder) subtable(prefix uint32, length uint) {
	size := length - b.index
	left := 1<<size - b.count[length]
	for l := length + 1; left > 0 && l <= maxCodeLength; l++ {
		size++
		left = left<<1 - b.count[l]
	}
	b.prefix, b.start, b.size = prefix, b.free, size
	b.free += 1 << size
	b.table[prefix] = uint32(b.start)<<entryValueShift | entrySubtable | uint32(size)<<entryLengthShift |
		uint32(b.index)
}
