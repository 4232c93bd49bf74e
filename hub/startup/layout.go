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

// Layout lays out what recordings say of the tree: those that are kept of an
// image, in the order of Kept.Recordings, and those that Guess has made. It returns at most
// index.MaxStartups packs of at most limit plain bytes, in the order in which to
// fetch them. Each chunk is in one of them at most. No recordings, no packs.
//
// Where there are recordings of real starts, guesses decide of nothing that these
// use, nor of what is fetched at mount: they add packs for what nobody has started
// yet. So do workloads that may be chance (doubt).
func (t *Tree) Layout(ctx context.Context, recordings []trace.Recording, limit int64) ([]Pack, error) {
	var real, guesses []trace.Recording
	for _, r := range recordings {
		if r.Starts > 0 {
			real = append(real, r)
		} else {
			guesses = append(guesses, r)
		}
	}
	var all []starts
	for _, w := range Workloads(real) {
		samples, err := t.uses(ctx, w.Samples)
		if err != nil {
			return nil, err
		}
		if uses := merged(samples); len(uses) > 0 {
			all = append(all, starts{count: w.Starts, uses: uses})
		}
	}
	doubt(all)
	uses, err := t.uses(ctx, guesses[:min(len(guesses), maxWorkloads)])
	if err != nil {
		return nil, err
	}
	return layOut(withGuesses(all, uses), min(limit, maxLayout)), nil
}

// firstGuess is how many starts the first guess counts, each further one counting
// one, where no real start is known.
const firstGuess = 64

// withGuesses adds guesses to workloads, but for those that a workload makes good
// for that counts: it has read half of what was guessed.
func withGuesses(all []starts, guesses [][]use) []starts {
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
			all = append(all, starts{guess: true, uses: uses})
		case i == 0:
			all = append(all, starts{guess: true, count: firstGuess, uses: uses})
		default:
			all = append(all, starts{guess: true, count: 1, uses: uses})
		}
	}
	return all
}

// starts is one workload as the tree has it.
type starts struct {
	guess bool
	count int64 // 0: it is a guess beside real ones, or may be chance
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
	users users
	place int // in the median of the orders of the workloads that use it
}

// users is a set of workloads, a bit each.
type users uint32

func (u users) has(w int) bool { return u&(1<<w) != 0 }

// layOut groups the chunks by those who use them, and makes packs of the groups, of
// at most limit plain bytes.
func layOut(all []starts, limit int64) []Pack {
	if len(all) == 0 {
		return nil
	}
	p := newPlan(all)
	p.group(itemsOf(all))
	p.join()
	p.shorten(limit)
	return p.packs()
}

// itemsOf returns the chunks of all workloads, in the order in which they are used
// in the median. Of a chunk that some use that count, the others are no users, nor of
// one that is guessed those that may be chance.
func itemsOf(all []starts) []*item {
	byID := map[chunk.ID]*item{}
	places := map[*item][]int{} // of each of its users, in turn
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
	tiers := []users{counted(all), guessed(all)}
	for _, it := range items {
		who := it.users
		for _, first := range tiers {
			if who&first != 0 {
				it.users = who & first
				break
			}
		}
		it.place = median(placesOf(places[it], who, it.users))
	}
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(a.place, b.place) })
	return items
}

// placesOf returns of the places of all users those of some.
func placesOf(places []int, all, some users) (out []int) {
	for _, at := range places {
		first := all & -all
		if all &^= first; some&first != 0 {
			out = append(out, at)
		}
	}
	return out
}

// guessed is the set of all guesses.
func guessed(all []starts) (guesses users) {
	for w, s := range all {
		if s.guess {
			guesses |= 1 << w
		}
	}
	return guesses
}

// counted is the set of all workloads that count.
func counted(all []starts) (real users) {
	for w, s := range all {
		if s.count > 0 {
			real |= 1 << w
		}
	}
	return real
}
