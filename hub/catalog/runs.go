package catalog

import (
	"encoding/binary"
	"errors"
	"slices"
)

// encodeRuns writes a set of numbers as runs: for each, the distance from the
// end of the one before and the number of members, as varints. A new layer's
// chunks have numbers in a row, so a few bytes hold thousands of them. It sorts
// numbers.
func encodeRuns(numbers []int64) []byte {
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	b := []byte{}
	end := int64(0)
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n] == numbers[0]+int64(n) {
			n++
		}
		b = appendRun(b, end, numbers[0], numbers[0]+int64(n))
		end = numbers[0] + int64(n)
		numbers = numbers[n:]
	}
	return b
}

// appendRun writes the run from first to end, behind one that ended before.
func appendRun(b []byte, before, first, end int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(first-before)), uint64(end-first))
}

// decodeRuns calls fn for each run that encodeRuns wrote: the first number, and
// the one behind the last.
func decodeRuns(b []byte, fn func(first, end int64)) error {
	end := uint64(0)
	for len(b) > 0 {
		skip, i := binary.Uvarint(b)
		if i <= 0 {
			return errors.New("a set of chunks is damaged")
		}
		count, j := binary.Uvarint(b[i:])
		if j <= 0 || skip > maxNumber || count > maxNumber || end+skip+count > maxNumber {
			return errors.New("a set of chunks is damaged")
		}
		first := end + skip
		end = first + count
		fn(int64(first), int64(end))
		b = b[i+j:]
	}
	return nil
}

const maxNumber = 1 << 40
