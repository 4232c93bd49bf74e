package numberset

import (
	"iter"
	"maps"
	"slices"
)

// Values has a value for each number: 0, until Update changes it. It has memory for those blocks of
// 64 numbers that were updated. The zero value is ready to use. It is not safe for concurrent
// changes.
type Values struct{ blocks map[int64]*[blockLen]int32 }

// Update replaces the values of the numbers of the run [first, end) by what fn returns for them.
func (v *Values) Update(first, end int64, fn func(int32) int32) {
	if v.blocks == nil {
		v.blocks = map[int64]*[blockLen]int32{}
	}
	for first < end {
		block := v.blocks[first/blockLen]
		if block == nil {
			block = new([blockLen]int32)
			v.blocks[first/blockLen] = block
		}
		next := min(end, (first/blockLen+1)*blockLen)
		for ; first < next; first++ {
			block[first%blockLen] = fn(block[first%blockLen])
		}
	}
}

// Run is the numbers from First to before End, which have the same value.
type Run struct {
	First, End int64
	Value      int32
}

// Runs yields the numbers whose values are not 0, as the longest possible runs in ascending order.
func (v *Values) Runs() iter.Seq[Run] {
	return func(yield func(Run) bool) {
		var run Run
		for _, block := range slices.Sorted(maps.Keys(v.blocks)) {
			for i, value := range v.blocks[block] {
				n := block*blockLen + int64(i)
				if n == run.End && value == run.Value {
					run.End++
					continue
				}
				if run.Value != 0 && !yield(run) {
					return
				}
				run = Run{n, n + 1, value}
			}
		}
		if run.Value != 0 {
			yield(run)
		}
	}
}
