package startup

import (
	"cmp"
	"math/bits"
	"slices"

	"lighter/format/index"
)

const (
	// A pack less to be triggered is worth so many plain bytes, fetched in vain: a
	// round trip of some milliseconds. One that is fetched at mount is worth more,
	// since nobody waits for its first chunk.
	triggerWorth = 1 << 20
	mountWorth   = 4 << 20

	// tolerance is which part of what a workload uses it may be given in vain, and
	// minTolerance the bytes that do not matter to any.
	tolerance    = 0.05
	minTolerance = 64 << 10
	// A workload that is rarer than rare, as a part of all starts, may be given
	// more in vain, by the square of it; it counts as no rarer than rarest.
	rare, rarest = 0.1, 0.01

	// maxGroups bounds the groups among which pairs are looked for.
	maxGroups = 96
	// fewest is how many chunks make a pack: of less the trigger is most of it.
	fewest = 3
)

// group is a pack in the making.
type group struct {
	users users // who fetches it
	mount bool  // everybody does, at mount
	items []*item
	bytes int64
	used  []int64 // of these bytes, by each workload
}

// plan is a layout in the making.
type plan struct {
	all    []starts
	share  []float64 // of all starts, of each workload, within bounds
	vain   []int64   // bytes that each workload may yet be given in vain
	groups []*group
}

func newPlan(all []starts) *plan {
	p := &plan{all: all, share: make([]float64, len(all)), vain: make([]int64, len(all))}
	total := float64(0)
	for _, s := range all {
		if s.count > 0 {
			total += rounded(s.count)
		}
	}
	for w, s := range all {
		if s.count == 0 {
			p.share[w], p.vain[w] = rarest/10, maxLayout
			continue
		}
		share := rounded(s.count) / total
		p.share[w] = min(max(share, rarest), 0.5)
		size := int64(0)
		for _, u := range s.uses {
			size += int64(u.ref.Length)
		}
		seldom := max(1, rare/p.share[w])
		p.vain[w] = int64(max(tolerance*float64(size), minTolerance) * seldom * seldom)
	}
	return p
}

// rounded brings a count to a power of two, so that a start more seldom changes
// the layout.
func rounded(n int64) float64 { return float64(int64(1) << (bits.Len64(uint64(max(n, 1))) - 1)) }

// group puts the chunks that the same workloads use into one group each. There is
// always the group at mount, to which others may come.
func (p *plan) group(items []*item) {
	mount := &group{users: counted(p.all), mount: true, used: make([]int64, len(p.all))}
	groups := map[users]*group{mount.users: mount}
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

// join makes one group of two as long as that is worth more than what is then
// fetched in vain.
func (p *plan) join() {
	rest := p.groups[1:]
	slices.SortStableFunc(rest, func(a, b *group) int { return cmp.Compare(b.bytes, a.bytes) })
	large := p.groups[:min(len(p.groups), maxGroups)]
	small := p.groups[len(large):]
	p.groups = slices.Clone(large)
	for _, g := range small { // into the best of the large ones, or none
		best, to := 0.0, -1
		for i, h := range p.groups {
			if worth, ok := p.worth(h, g); ok && worth > best {
				best, to = worth, i
			}
		}
		if to >= 0 {
			p.unite(to, g)
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
		p.unite(to, g)
	}
	p.groups = slices.DeleteFunc(p.groups, func(g *group) bool {
		return len(g.items) == 0 || !g.mount && len(g.items) < fewest
	})
	for _, g := range p.groups {
		slices.SortStableFunc(g.items, func(a, b *item) int { return cmp.Compare(a.place, b.place) })
	}
}

// worth says how much is won if two groups become one, in bytes for the average
// start, and whether no workload is given too much in vain.
func (p *plan) worth(g, h *group) (worth float64, ok bool) {
	both := g.users | h.users
	for w := range p.all {
		if !both.has(w) {
			continue
		}
		more := p.moreInVain(g, h, w)
		if more > p.vain[w] {
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

// moreInVain is how many bytes more workload w gets in vain if g and h are one.
func (p *plan) moreInVain(g, h *group, w int) (more int64) {
	if !g.users.has(w) {
		more += g.bytes - g.used[w]
	}
	if !h.users.has(w) {
		more += h.bytes - h.used[w]
	}
	return more
}

// unite takes g into a group.
func (p *plan) unite(to int, g *group) {
	h := p.groups[to]
	for w := range p.all {
		if (g.users | h.users).has(w) {
			p.vain[w] -= p.moreInVain(h, g, w)
		}
		h.used[w] += g.used[w]
	}
	h.users |= g.users
	h.bytes += g.bytes
	h.items = append(h.items, g.items...)
}

// shorten brings the groups within the bounds of a layout: those that few use, and
// their ends, are left out. The group at mount is the first.
func (p *plan) shorten(limit int64) {
	value := func(g *group) (v float64) {
		for w := range p.all {
			if g.users.has(w) {
				v += p.share[w]
			}
		}
		return v * float64(len(g.items))
	}
	slices.SortStableFunc(p.groups, func(a, b *group) int {
		if a.mount != b.mount {
			return map[bool]int{true: -1, false: 1}[a.mount]
		}
		return cmp.Compare(value(b), value(a))
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
		if a.mount != b.mount {
			return map[bool]int{true: -1, false: 1}[a.mount]
		}
		return cmp.Compare(a.items[0].place, b.items[0].place)
	})
}
