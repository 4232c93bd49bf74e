package numberset

// Bits is a set of numbers with one bit for each number up to the largest. The zero value is the
// empty set. It is not safe for concurrent changes.
type Bits struct{ words []uint64 }

// Add adds the run [first, end).
func (b *Bits) Add(first, end int64) {
	if missing := int(end/64) + 1 - len(b.words); missing > 0 {
		b.words = append(b.words, make([]uint64, missing)...)
	}
	for n := first; n < end; n++ {
		b.words[n/64] |= 1 << (n % 64)
	}
}

// Has reports whether the set has a number.
func (b *Bits) Has(n int64) bool { return int(n/64) < len(b.words) && b.words[n/64]&(1<<(n%64)) != 0 }

// Gaps calls fn for ranges [first, end) of the numbers from 1 to last, in ascending order, until fn
// returns an error. The ranges have all of these numbers that are not in the set. A range may
// include runs of numbers in the set, of at most join numbers each, so that there are fewer ranges.
func (b *Bits) Gaps(last, join int64, fn func(first, end int64) error) error {
	first, end := int64(0), int64(-1) // of the current range; end < 0: there is none
	for n := int64(1); n <= last; n++ {
		if b.Has(n) {
			continue
		}
		if end >= 0 && n-end > join {
			if err := fn(first, end); err != nil {
				return err
			}
			end = -1
		}
		if end < 0 {
			first = n
		}
		end = n + 1
	}
	if end < 0 {
		return nil
	}
	return fn(first, end)
}
