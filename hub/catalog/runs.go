package catalog

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
)

// encodeRuns encodes a set of numbers as runs: for each run, its distance from the end of the
// previous one and its length, as varints. The new chunks of a layer are one run, so a few bytes
// hold thousands of them. encodeRuns sorts numbers.
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

// appendRun appends the run [first, end). The previous run ends at before.
func appendRun(b []byte, before, first, end int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(first-before)), uint64(end-first))
}

// decodeRuns calls fn for each run [first, end), until it fails.
func decodeRuns(b []byte, fn func(first, end int64) error) error {
	end := uint64(0)
	for len(b) > 0 {
		skip, i := binary.Uvarint(b)
		if i <= 0 {
			return errRuns
		}
		count, j := binary.Uvarint(b[i:])
		if j <= 0 || skip > maxNumber || count > maxNumber || end+skip+count > maxNumber {
			return errRuns
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

// layerChunks are the chunks of a layer, as encodeRuns returns them.
type layerChunks struct {
	diffID string
	chunks []byte
}

// layersChunks reads the chunks of all layers.
func layersChunks(ctx context.Context, db session) iter.Seq2[layerChunks, error] {
	return rows(ctx, db, func(l *layerChunks) []any { return []any{&l.diffID, &l.chunks} },
		`SELECT diff_id, chunks FROM layers`)
}

const maxNumber = 1 << 40

var errRuns = errors.New("set of chunks is damaged")
