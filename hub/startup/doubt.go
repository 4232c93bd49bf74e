package startup

import (
	"cmp"
	"slices"

	"lighter/format/chunk"
)

const (
	// negligible is how many starts there are for each of a workload that decides of
	// nothing: a few odd ones must not keep all others from being begun at mount.
	negligible = 100
	// enough starts of others, and more, are needed to doubt of a single one.
	enough = 3
)

// doubt has workloads decide of nothing that may be chance: their counts become 0.
// These are
//
//   - those that are less than a hundredth of all starts;
//   - those that were seen once, beside enough starts of what was seen more often;
//   - of workloads of which none was seen often, one that was seen once and uses less
//     than half of what all others have in common, unless the others use nearly all
//     that it does: it may just have ended early.
//
// What they alone use, and nobody has guessed, has packs of its own, and when they are seen again they
// are like all others.
func doubt(all []starts) {
	total, often := int64(0), int64(0)
	for _, s := range all {
		total += s.count
		if s.count > 1 {
			often += s.count
		}
	}
	odd := -1
	if often < enough && total > enough {
		odd = oddOne(all)
	}
	for i := range all {
		s := &all[i]
		if s.count*negligible < total || s.count == 1 && often >= enough || i == odd {
			s.count = 0
		}
	}
	slices.SortStableFunc(all, func(a, b starts) int { // so that they break no ties of the others
		return cmp.Compare(min(b.count, 1), min(a.count, 1))
	})
}

// oddOne returns the one workload that has next to nothing to do with the others, -1
// if there is none or are several.
func oddOne(all []starts) int {
	users := map[chunk.ID]int{}
	for _, s := range all {
		for _, u := range s.uses {
			users[u.ref.ID]++
		}
	}
	odd := -1
	for i, s := range all {
		if s.count != 1 || !isOdd(all, i, users) {
			continue
		}
		if odd >= 0 {
			return -1
		}
		odd = i
	}
	return odd
}

// isOdd tells whether workload i is the odd one; users says how many use each chunk.
func isOdd(all []starts, i int, users map[chunk.ID]int) bool {
	size, shared, had := int64(0), int64(0), int64(0) // had: of what all others have in common
	uses := map[chunk.ID]bool{}
	for _, u := range all[i].uses {
		n := int64(u.ref.Length)
		uses[u.ref.ID] = true
		size += n
		if users[u.ref.ID] > 1 {
			shared += n
		}
		if users[u.ref.ID] == len(all) {
			had += n
		}
	}
	common := had
	for _, u := range all[(i+1)%len(all)].uses { // one of the others has it all
		if users[u.ref.ID] == len(all)-1 && !uses[u.ref.ID] {
			common += int64(u.ref.Length)
		}
	}
	return 2*had < common && float64(shared) < alike*float64(size)
}
