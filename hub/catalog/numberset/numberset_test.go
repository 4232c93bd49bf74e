package numberset

import (
	"fmt"
	"slices"
	"testing"
)

func TestEncode(t *testing.T) {
	for _, numbers := range [][]int64{nil, {1}, {1, 2, 3}, {5, 1, 9, 2, 8}, {7, 7, 7}, {1 << 30, 1}} {
		b := Encode(slices.Clone(numbers))
		var decoded []int64
		if err := Decode(b, func(first, end int64) error {
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
	if got, want := fmt.Sprintf("%x", Encode([]int64{1, 2, 3, 500, 501, 9})), "01030501ea0302"; got != want {
		t.Errorf("runs are encoded as %s, want %s", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode([]int64{1, 2, 3, 500, 501, 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		last := int64(0)
		_ = Decode(b, func(first, end int64) error {
			if first < last || end < first {
				t.Errorf("a run from %d to %d after one that ends at %d, want ascending runs", first, end, last)
			}
			last = end
			return nil
		})
	})
}

// The gaps have every number that is not in the set. Gaps with few numbers between them are joined.
func TestGaps(t *testing.T) {
	var set Bits
	set.Add(1, 10)
	set.Add(12, 14)
	set.Add(20, 130)
	for _, c := range []struct {
		last, join int64
		want       [][2]int64
	}{
		{0, 0, nil}, {9, 0, nil},
		{200, 0, [][2]int64{{10, 12}, {14, 20}, {130, 201}}},
		{200, 2, [][2]int64{{10, 20}, {130, 201}}},
		{200, 110, [][2]int64{{10, 201}}},
		{11, 2, [][2]int64{{10, 12}}},
	} {
		var got [][2]int64
		if err := set.Gaps(c.last, c.join, func(first, end int64) error {
			got = append(got, [2]int64{first, end})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("gaps up to %d, joined by %d: %d, want %d", c.last, c.join, got, c.want)
		}
	}
	if !set.Has(129) || set.Has(130) || set.Has(0) || set.Has(1<<39) {
		t.Error("the set has other numbers than were added")
	}
}
