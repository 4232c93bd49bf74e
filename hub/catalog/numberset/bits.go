package numberset

import (
	"iter"
	"maps"
	"math/bits"
	"slices"
)

// blockLen is the length of a block: numbers that have one entry in a map. It is small because the
// numbers that stay are scattered when most others are gone.
const blockLen = 64

// Bits is a set of numbers, with one word of bits for each block of 64 numbers of which it has any.
// The zero value is the empty set. It is not safe for concurrent changes.
type Bits struct{ blocks map[int64]uint64 }

// Add adds the run [first, end).
func (b *Bits) Add(first, end int64) {
	if b.blocks == nil {
		b.blocks = map[int64]uint64{}
	}
	for first < end {
		next := min(end, (first/blockLen+1)*blockLen)
		b.blocks[first/blockLen] |= ^uint64(0) >> (blockLen - (next - first)) << (first % blockLen)
		first = next
	}
}

// Has reports whether the set has a number.
func (b *Bits) Has(n int64) bool { return b.blocks[n/blockLen]&(1<<(n%blockLen)) != 0 }

// runs yields runs [first, end) of the set, in ascending order. Neighbouring blocks have runs of
// their own.
func (b *Bits) runs() iter.Seq2[int64, int64] {
	return func(yield func(first, end int64) bool) {
		for _, block := range slices.Sorted(maps.Keys(b.blocks)) {
			for n, left := 0, b.blocks[block]; left != 0; {
				skip := bits.TrailingZeros64(left)
				count := bits.TrailingZeros64(^(left >> skip))
				first := block*blockLen + int64(n+skip)
				if !yield(first, first+int64(count)) {
					return
				}
				n, left = n+skip+count, left>>skip>>count
			}
		}
	}
}

// Gaps calls fn for ranges [first, end) of the numbers from 1 to last, in ascending order, until fn
// returns an error. The ranges have all of these numbers that are not in the set. A range may
// include runs of numbers in the set, of at most join numbers each, so that there are fewer ranges.
func (b *Bits) Gaps(last, join int64, fn func(first, end int64) error) error {
	first, end := int64(0), int64(0) // of the next range; end == 0: there is none yet
	next := int64(1)                 // the end of the last run
	add := func(from, to int64) (err error) {
		if from >= to {
			return nil
		}
		if end > 0 && from-end > join {
			err = fn(first, end)
			end = 0
		}
		if end == 0 {
			first = from
		}
		end = to
		return err
	}
	for from, to := range b.runs() {
		if err := add(next, min(from, last+1)); err != nil {
			return err
		}
		next = to
	}
	if err := add(next, last+1); err != nil || end == 0 {
		return err
	}
	return fn(first, end)
}
