package plan

import (
	"cmp"
	"context"
	"slices"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// Pack describes a startup pack to make: chunks to be fetched together, in order.
type Pack struct {
	Units    [][]chunk.Ref // the chunks of each unit; Ref.Unit is not set
	Bytes    int64         // plain bytes of all chunks
	AtMount  bool          // nodes fetch the pack at mount
	Triggers []int64       // numbers of extents, ascending
}

// Layout returns the startup packs of the tree. kept has the recordings kept of an image, in the
// order of Kept.Recordings. guesses has the recordings of package guess, the likeliest first.
// Layout returns at most index.MaxStartups packs, with at most limit plain bytes in all, in the
// order in which to fetch them. Each chunk is in at most one pack. Without kept and guesses there
// are no packs.
//
// If there are recordings of real starts, guesses only add packs for starts that were never
// reported. They change neither what is fetched at mount nor the packs of chunks that real starts
// use. The same holds for outliers (discountOutliers).
func (t *Tree) Layout(ctx context.Context, kept, guesses []trace.Recording, limit int64) ([]Pack, error) {
	var all []planned
	for _, w := range Workloads(kept) {
		samples, err := t.uses(ctx, w.Samples)
		if err != nil {
			return nil, err
		}
		if uses := merged(samples); len(uses) > 0 {
			all = append(all, planned{count: w.Starts, uses: uses})
		}
	}
	discountOutliers(all)
	guesses = slices.Clone(guesses[:min(len(guesses), maxWorkloads)])
	for i := range guesses {
		guesses[i] = bounded(guesses[i])
	}
	uses, err := t.uses(ctx, guesses)
	if err != nil {
		return nil, err
	}
	return layOut(withGuesses(all, uses), min(limit, maxLayout)), nil
}

// withGuesses adds guesses to workloads. It leaves out a guess if a real workload that is no
// outlier has read at least half of its bytes.
func withGuesses(all []planned, guesses [][]use) []planned {
	var real []map[chunk.ID]bool
	for _, s := range all {
		if s.count == 0 {
			continue
		}
		ids := map[chunk.ID]bool{}
		for _, u := range s.uses {
			ids[u.ref.ID] = true
		}
		real = append(real, ids)
	}
	for i, uses := range guesses {
		known := len(uses) == 0
		for _, ids := range real {
			read, size := int64(0), int64(0)
			for _, u := range uses {
				size += int64(u.ref.Length)
				if ids[u.ref.ID] {
					read += int64(u.ref.Length)
				}
			}
			known = known || 2*read >= size
		}
		switch {
		case known:
		case len(real) > 0:
			all = append(all, planned{guess: true, uses: uses})
		case i == 0:
			all = append(all, planned{guess: true, count: firstGuess, uses: uses})
		default:
			all = append(all, planned{guess: true, count: 1, uses: uses})
		}
	}
	return all
}

// planned is a workload, or a guess, whose chunks were found in the tree.
type planned struct {
	guess bool
	count int64 // number of starts; 0: an outlier, or a guess although real starts are known
	uses  []use // in order of first use
}

// merged returns the chunks that at least half of the samples use, ordered by the median of their
// places in the samples.
func merged(samples [][]use) []use {
	places := map[chunk.ID][]int{}
	var order []use
	for _, uses := range samples {
		for i, u := range uses {
			if places[u.ref.ID] == nil {
				order = append(order, u)
			}
			places[u.ref.ID] = append(places[u.ref.ID], i)
		}
	}
	order = slices.DeleteFunc(order, func(u use) bool { return 2*len(places[u.ref.ID]) < len(samples) })
	slices.SortStableFunc(order, func(a, b use) int {
		return cmp.Compare(median(places[a.ref.ID]),
			median(places[b.ref.ID]))
	})
	return order
}

// median returns twice the median of numbers, so that it is an integer.
func median(n []int) int {
	n = slices.Sorted(slices.Values(n))
	return n[(len(n)-1)/2] + n[len(n)/2]
}

// item is a chunk with the workloads that use it.
type item struct {
	use
	users workloadSet
	place int // twice the median of its places in these workloads
}

// workloadSet is a set of workloads, a bit each.
type workloadSet uint32

func (s workloadSet) has(w int) bool { return s&(1<<w) != 0 }

// layOut groups chunks by the workloads that use them and makes packs of the groups, of at most
// limit plain bytes in all.
func layOut(all []planned, limit int64) []Pack {
	if len(all) == 0 {
		return nil
	}
	p := newPlan(all)
	p.group(itemsOf(all))
	p.mergeGroups()
	p.truncate(limit)
	return p.packs()
}

// itemsOf returns the chunks of all workloads, ordered by their place. If counted workloads use a
// chunk, only these are its users. Otherwise, if guesses use it, only the guesses are its users.
func itemsOf(all []planned) []*item {
	byID := map[chunk.ID]*item{}
	places := map[*item][]int{} // the chunk's place in each of its users, in the order of all
	var items []*item
	for w, s := range all {
		for i, u := range s.uses {
			it := byID[u.ref.ID]
			if it == nil {
				it = &item{use: u}
				byID[u.ref.ID] = it
				items = append(items, it)
			}
			it.users |= 1 << w
			places[it] = append(places[it], i)
		}
	}
	tiers := []workloadSet{counted(all), guessed(all)}
	for _, it := range items {
		every := it.users
		for _, tier := range tiers {
			if every&tier != 0 {
				it.users = every & tier
				break
			}
		}
		it.place = median(placesOf(places[it], every, it.users))
	}
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(a.place, b.place) })
	return items
}

// placesOf selects some of an item's places. places has one place for each workload of the set all,
// in order. The result has the places of the workloads in some, a subset of all.
func placesOf(places []int, all, some workloadSet) (out []int) {
	for _, at := range places {
		lowest := all & -all
		if all &^= lowest; some&lowest != 0 {
			out = append(out, at)
		}
	}
	return out
}

// guessed returns the set of all guesses.
func guessed(all []planned) (guesses workloadSet) {
	for w, s := range all {
		if s.guess {
			guesses |= 1 << w
		}
	}
	return guesses
}

// counted returns the workloads with a count: real ones that are no outliers or, if no start was
// reported, the guesses.
func counted(all []planned) (set workloadSet) {
	for w, s := range all {
		if s.count > 0 {
			set |= 1 << w
		}
	}
	return set
}
