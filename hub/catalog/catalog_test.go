package catalog

import (
	"fmt"
	"slices"
	"testing"
)

func TestRuns(t *testing.T) {
	for _, numbers := range [][]int64{nil, {1}, {1, 2, 3}, {5, 1, 9, 2, 8}, {7, 7, 7}, {1 << 30, 1}} {
		b := encodeRuns(slices.Clone(numbers))
		var decoded []int64
		if err := decodeRuns(b, func(first, end int64) error {
			for n := first; n < end; n++ {
				decoded = append(decoded, n)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := slices.Compact(slices.Sorted(slices.Values(numbers)))
		if !slices.Equal(decoded, want) {
			t.Errorf("decoded %d, want %d", decoded, want)
		}
	}
	if got, want := fmt.Sprintf("%x", encodeRuns([]int64{1, 2, 3, 500, 501, 9})), "01030501ea0302"; got != want {
		t.Errorf("runs are encoded as %s, want %s", got, want)
	}
}

func FuzzDecodeRuns(f *testing.F) {
	f.Add(encodeRuns([]int64{1, 2, 3, 500, 501, 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		last := int64(0)
		_ = decodeRuns(b, func(first, end int64) error {
			if first < last || end < first {
				t.Errorf("a run from %d to %d after one that ends at %d", first, end, last)
			}
			last = end
			return nil
		})
	})
}
