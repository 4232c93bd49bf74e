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
	if !set.Has(129) || set.Has(130) || set.Has(0) || set.Has(high) {
		t.Error("the set has other numbers than were added")
	}
}

// high is a number up to which no table could be as long.
const high = 1 << 39

// What is in between takes neither memory nor time, however high a number is.
func TestHighNumbers(t *testing.T) {
	var set Bits
	set.Add(0, 64)
	set.Add(high-1, high+65)
	var gaps [][2]int64
	if err := set.Gaps(high+66, 0, func(first, end int64) error {
		gaps = append(gaps, [2]int64{first, end})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := [][2]int64{{64, high - 1}, {high + 65, high + 67}}; !slices.Equal(gaps, want) {
		t.Errorf("gaps %d, want %d", gaps, want)
	}
	if !set.Has(high-1) || !set.Has(high+64) || set.Has(high+65) {
		t.Error("the set has other high numbers than were added")
	}

	var values Values
	add := func(v int32) func(int32) int32 { return func(before int32) int32 { return before + v } }
	values.Update(1, 3, add(1))
	values.Update(high-1, high+1, add(2))
	values.Update(2, 2, add(3))
	values.Update(2, 3, add(4))
	values.Update(190, 200, add(5))
	want := []Run{{1, 2, 1}, {2, 3, 5}, {190, 200, 5}, {high - 1, high + 1, 2}}
	if got := slices.Collect(values.Runs()); !slices.Equal(got, want) {
		t.Errorf("runs %+v, want %+v", got, want)
	}
}
