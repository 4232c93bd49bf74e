package plan

import (
	"cmp"
	"slices"

	"lighter/format/chunk"
)

// discountOutliers sets the counts of outliers to 0, so that they change no other workload's packs
// and nothing that is fetched at mount. A few odd starts would otherwise leave nothing that all
// workloads use. Outliers are
//
//   - workloads with less than a hundredth of all starts;
//   - workloads with one start, if the workloads with several starts have at least minEvidence
//     starts together;
//   - otherwise, if there are more than minEvidence starts: a workload with one start that reads
//     less than half of the bytes that all other workloads have in common, if there is only one
//     such workload (isOutlier). It is not an outlier if other workloads read most of its bytes:
//     its start may only have ended early.
//
// Chunks that only outliers use, and no guess has, get packs of their own. An outlier counts like
// the other workloads as soon as enough further starts belong to it.
func discountOutliers(all []planned) {
	total, often := int64(0), int64(0)
	for _, s := range all {
		total += s.count
		if s.count > 1 {
			often += s.count
		}
	}
	outlier := -1
	if often < minEvidence && total > minEvidence {
		outlier = findOutlier(all)
	}
	for i := range all {
		s := &all[i]
		if s.count*outlierShare < total || s.count == 1 && often >= minEvidence || i == outlier {
			s.count = 0
		}
	}
	// Outliers go to the end, so that they decide no tie between the others.
	slices.SortStableFunc(all, func(a, b planned) int {
		return cmp.Compare(min(b.count, 1), min(a.count, 1))
	})
}

// findOutlier returns the only workload with one start for which isOutlier holds, or -1 if there is
// none, or more than one.
func findOutlier(all []planned) int {
	users := map[chunk.ID]int{}
	for _, s := range all {
		for _, u := range s.uses {
			users[u.ref.ID]++
		}
	}
	found := -1
	for i, s := range all {
		if s.count != 1 || !isOutlier(all, i, users) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

// isOutlier reports whether two conditions hold: of the bytes that every other workload reads,
// workload i reads less than half; and of the bytes that it reads itself, less than minSimilarity
// are read by any other. users has the number of users of each chunk.
func isOutlier(all []planned, i int, users map[chunk.ID]int) bool {
	size, shared := int64(0), int64(0)
	ofCommon := int64(0) // bytes that this workload and all others use
	uses := map[chunk.ID]bool{}
	for _, u := range all[i].uses {
		n := int64(u.ref.Length)
		uses[u.ref.ID] = true
		size += n
		if users[u.ref.ID] > 1 {
			shared += n
		}
		if users[u.ref.ID] == len(all) {
			ofCommon += n
		}
	}
	common := ofCommon
	for _, u := range all[(i+1)%len(all)].uses { // any other workload: all others have these chunks
		if users[u.ref.ID] == len(all)-1 && !uses[u.ref.ID] {
			common += int64(u.ref.Length)
		}
	}
	return 2*ofCommon < common && float64(shared) < minSimilarity*float64(size)
}
