// Package numberset has sets of numbers in two forms: encoded as runs, which are short, and as
// bits, which are quick to look up. A third type has a value for each number. The catalog keeps the
// numbers of each layer's chunks as runs. The package is pure: it knows no database and no chunks.
//
// Each form takes memory for the numbers that it has, however high they are. The numbers of removed
// chunks are never used again, so those of a hub's chunks rise as long as it runs.
//
// Numbers are from 0 to 2^40. Encoded sets are stored, so their form never changes.
package numberset

import (
	"encoding/binary"
	"errors"
	"slices"
)

const maxNumber = 1 << 40

// ErrDamaged means that bytes are not an encoded set.
var ErrDamaged = errors.New("set of numbers is damaged")

// Encode encodes a set of numbers as runs: for each run, its distance from the end of the previous
// one and its length, as varints. The new chunks of a layer are one run, so a few bytes hold
// thousands of them. Encode sorts numbers.
func Encode(numbers []int64) []byte {
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	b := []byte{}
	end := int64(0)
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n] == numbers[0]+int64(n) {
			n++
		}
		b = AppendRun(b, end, numbers[0], numbers[0]+int64(n))
		end = numbers[0] + int64(n)
		numbers = numbers[n:]
	}
	return b
}

// AppendRun appends the run [first, end) to an encoded set. The set's last run ends at before; 0 if
// the set is empty.
func AppendRun(b []byte, before, first, end int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(first-before)), uint64(end-first))
}

// Decode calls fn for each run [first, end) of an encoded set, in ascending order, until fn returns
// an error. The error is fn's, or ErrDamaged.
func Decode(b []byte, fn func(first, end int64) error) error {
	end := uint64(0)
	for len(b) > 0 {
		skip, i := binary.Uvarint(b)
		if i <= 0 {
			return ErrDamaged
		}
		count, j := binary.Uvarint(b[i:])
		if j <= 0 || skip > maxNumber || count > maxNumber || end+skip+count > maxNumber {
			return ErrDamaged
		}
		first := end + skip
		end = first + count
		if err := fn(int64(first), int64(end)); err != nil {
			return err
		}
		b = b[i+j:]
	}
	return nil
}
