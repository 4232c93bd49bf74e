package plan

import (
	"cmp"
	"math/bits"
	"slices"

	"lighter/format/index"
)

// group is a future pack.
type group struct {
	users workloadSet // workloads that fetch it
	mount bool        // fetched at mount, by all starts
	items []*item
	bytes int64
	used  []int64 // by workload: how many bytes of the group it uses
}

// plan is a future layout.
type plan struct {
	all    []planned
	share  []float64 // each workload's share of all starts, within bounds
	budget []int64   // bytes that each workload may still waste
	groups []*group
}

func newPlan(all []planned) *plan {
	p := &plan{all: all, share: make([]float64, len(all)), budget: make([]int64, len(all))}
	total := float64(0)
	for _, s := range all {
		if s.count > 0 {
			total += rounded(s.count)
		}
	}
	for w, s := range all {
		if s.count == 0 {
			p.share[w], p.budget[w] = rarest/10, maxLayout
			continue
		}
		share := rounded(s.count) / total
		p.share[w] = min(max(share, rarest), 0.5)
		size := int64(0)
		for _, u := range s.uses {
			size += int64(u.ref.Length)
		}
		rarity := max(1, rare/p.share[w])
		p.budget[w] = int64(max(maxWaste*float64(size), minWaste) * rarity * rarity)
	}
	return p
}

// rounded rounds a count down to a power of two, so that one more start rarely changes the layout.
func rounded(n int64) float64 { return float64(int64(1) << (bits.Len64(uint64(max(n, 1))) - 1)) }

// group puts all chunks that the same workloads use into one group. The first group is fetched at
// mount. It exists even if it is empty, since other groups may be merged into it.
func (p *plan) group(items []*item) {
	mount := &group{users: counted(p.all), mount: true, used: make([]int64, len(p.all))}
	groups := map[workloadSet]*group{mount.users: mount}
	p.groups = []*group{mount}
	for _, it := range items {
		g := groups[it.users]
		if g == nil {
			g = &group{users: it.users, used: make([]int64, len(p.all))}
			groups[it.users] = g
			p.groups = append(p.groups, g)
		}
		g.items = append(g.items, it)
		g.bytes += int64(it.ref.Length)
		for w := range p.all {
			if it.users.has(w) {
				g.used[w] += int64(it.ref.Length)
			}
		}
	}
}

// mergeGroups merges pairs of groups as long as a merge is worth more than the bytes that it
// wastes.
func (p *plan) mergeGroups() {
	rest := p.groups[1:]
	slices.SortStableFunc(rest, func(a, b *group) int { return cmp.Compare(b.bytes, a.bytes) })
	large := p.groups[:min(len(p.groups), maxGroups)]
	small := p.groups[len(large):]
	p.groups = slices.Clone(large)
	for _, g := range small { // into the best large one, if any
		best, to := 0.0, -1
		for i, h := range p.groups {
			if worth, ok := p.worth(h, g); ok && worth > best {
				best, to = worth, i
			}
		}
		if to >= 0 {
			p.merge(to, g)
		}
	}
	for {
		best, to, from := 0.0, -1, -1
		for i, g := range p.groups {
			for j := i + 1; j < len(p.groups); j++ {
				if worth, ok := p.worth(g, p.groups[j]); ok && worth > best {
					best, to, from = worth, i, j
				}
			}
		}
		if to < 0 {
			break
		}
		g := p.groups[from]
		p.groups = slices.Delete(p.groups, from, from+1)
		p.merge(to, g)
	}
	p.groups = slices.DeleteFunc(p.groups, func(g *group) bool {
		return len(g.items) == 0 || !g.mount && len(g.items) < minChunks
	})
	for _, g := range p.groups {
		slices.SortStableFunc(g.items, func(a, b *item) int { return cmp.Compare(a.place, b.place) })
	}
}

// worth returns what merging two groups saves, in bytes for the average start, and whether every
// workload stays within its waste budget.
func (p *plan) worth(g, h *group) (worth float64, ok bool) {
	both := g.users | h.users
	for w := range p.all {
		if !both.has(w) {
			continue
		}
		more := p.waste(g, h, w)
		if more > p.budget[w] {
			return 0, false
		}
		worth -= p.share[w] * float64(more)
		switch {
		case !g.users.has(w) || !h.users.has(w) || h.used[w] == 0:
		case g.mount:
			worth += p.share[w] * mountWorth
		default:
			worth += p.share[w] * triggerWorth
		}
	}
	return worth, true
}

// waste returns the further bytes that workload w would fetch and not use if g and h were merged.
func (p *plan) waste(g, h *group, w int) (more int64) {
	if !g.users.has(w) {
		more += g.bytes - g.used[w]
	}
	if !h.users.has(w) {
		more += h.bytes - h.used[w]
	}
	return more
}

// merge merges g into the group at index to.
func (p *plan) merge(to int, g *group) {
	h := p.groups[to]
	for w := range p.all {
		if (g.users | h.users).has(w) {
			p.budget[w] -= p.waste(h, g, w)
		}
		h.used[w] += g.used[w]
	}
	h.users |= g.users
	h.bytes += g.bytes
	h.items = append(h.items, g.items...)
}

// truncate brings the groups within the bounds of a layout. It leaves out the least used groups and
// the ends of groups. The group that is fetched at mount comes first.
func (p *plan) truncate(limit int64) {
	value := func(g *group) (v float64) {
		for w := range p.all {
			if g.users.has(w) {
				v += p.share[w]
			}
		}
		return v * float64(len(g.items))
	}
	slices.SortStableFunc(p.groups, func(a, b *group) int {
		return cmp.Or(mountFirst(a, b), cmp.Compare(value(b), value(a)))
	})
	left := limit
	kept := p.groups[:0]
	for _, g := range p.groups {
		for i, it := range g.items {
			if int64(it.ref.Length) > left {
				g.items = g.items[:i]
				break
			}
			left -= int64(it.ref.Length)
		}
		if len(g.items) > 0 && len(kept) < index.MaxStartups {
			kept = append(kept, g)
		}
	}
	p.groups = kept
	slices.SortStableFunc(p.groups, func(a, b *group) int {
		return cmp.Or(mountFirst(a, b), cmp.Compare(a.items[0].place, b.items[0].place))
	})
}

// mountFirst compares groups: those that are fetched at mount come first.
func mountFirst(a, b *group) int {
	switch {
	case a.mount == b.mount:
		return 0
	case a.mount:
		return -1
	}
	return 1
}
