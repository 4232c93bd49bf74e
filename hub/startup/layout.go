package startup

import (
	"cmp"
	"context"
	"slices"

	"lighter/format/chunk"
	"lighter/format/trace"
)

const (
	// maxWorkload bounds what is laid out of one workload, in plain bytes.
	maxWorkload = 1 << 30
	// maxLayout bounds all packs of a tree, in plain bytes.
	maxLayout = 2 << 30
)

// Pack is a startup pack to be: chunks to be fetched together, in order.
type Pack struct {
	Units    [][]chunk.Ref // how to cut it; Ref.Unit is not set
	Bytes    int64         // plain
	AtMount  bool
	Triggers []int64 // extents, ascending
}

// Layout lays out what the recordings that are kept of an image say of the tree:
// at most index.MaxStartups packs, in the order in which to fetch them. Each chunk
// is in one of them at most. No recordings, no packs.
func (t *Tree) Layout(ctx context.Context, kept []trace.Recording) ([]Pack, error) {
	var all []starts
	for _, w := range Workloads(kept) {
		samples, err := t.uses(ctx, w.Samples)
		if err != nil {
			return nil, err
		}
		if uses := merged(samples); len(uses) > 0 {
			all = append(all, starts{count: w.Starts, uses: uses})
		}
	}
	return layOut(all), nil
}

// starts is one workload as the tree has it.
type starts struct {
	count int64
	uses  []use // in order of first use
}

// merged returns the chunks that at least half of the samples use, in the order of
// the median of their places.
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
	slices.SortStableFunc(order, func(a, b use) int { return cmp.Compare(median(places[a.ref.ID]), median(places[b.ref.ID])) })
	return order
}

// median returns the middle of numbers, of two the mean, doubled.
func median(n []int) int {
	n = slices.Sorted(slices.Values(n))
	return n[(len(n)-1)/2] + n[len(n)/2]
}

// item is a chunk with those who use it.
type item struct {
	use
	users  users
	places []int // in the order of each workload that uses it
}

// users is a set of workloads, a bit each.
type users uint32

func (u users) has(w int) bool { return u&(1<<w) != 0 }

// layOut groups the chunks by those who use them, and makes packs of the groups.
func layOut(all []starts) []Pack {
	if len(all) == 0 {
		return nil
	}
	p := newPlan(all)
	p.group(itemsOf(all))
	p.join()
	p.shorten()
	return p.packs()
}

// itemsOf returns the chunks of all workloads, in the order in which they are used
// in the median.
func itemsOf(all []starts) []*item {
	byID := map[chunk.ID]*item{}
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
			it.places = append(it.places, i)
		}
	}
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(median(a.places), median(b.places)) })
	return items
}
