package plan

import (
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

// packs makes one pack of each group.
func (p *plan) packs() []Pack {
	in := map[chunk.ID]*group{}
	for _, g := range p.groups {
		for _, it := range g.items {
			in[it.ref.ID] = g
		}
	}
	var out []Pack
	var earlier [][]int64     // for each pack: its triggers in packs that are read earlier
	left := index.MaxTriggers // triggers that may still be added, of all packs
	add := func(pack *Pack, triggers []int64) {
		before := len(pack.Triggers)
		pack.Triggers = append(pack.Triggers, triggers[:min(len(triggers), left)]...)
		slices.Sort(pack.Triggers)
		pack.Triggers = slices.Compact(pack.Triggers)
		left -= len(pack.Triggers) - before
	}
	for _, g := range p.groups {
		pack := Pack{Units: units(g.items), AtMount: g.mount}
		for _, it := range g.items {
			pack.Bytes += int64(it.ref.Length)
		}
		var before []int64
		if !g.mount {
			var own []int64
			own, before = p.triggers(g, in)
			add(&pack, own)
		}
		out, earlier = append(out, pack), append(earlier, before)
	}
	// Triggers in earlier packs are added last, as far as MaxTriggers permits: a pack without them
	// is still fetched, only later.
	for i := range out {
		add(&out[i], earlier[i])
	}
	return out
}

// triggers returns the extents whose read starts the fetch of group g. own has the first chunks
// that each workload of g reads in g. before has the first chunks that each of these workloads
// reads earlier, in groups that only workloads of g use: these triggers save a round trip.
func (p *plan) triggers(g *group, in map[chunk.ID]*group) (own, before []int64) {
	for w, s := range p.all {
		if !g.users.has(w) {
			continue
		}
		var firsts, others []int64
		for _, u := range s.uses {
			switch h := in[u.ref.ID]; {
			case h == g:
				firsts = append(firsts, u.extent)
			case h != nil && len(firsts) == 0 && len(others) < triggersEach && s.count > 0 && h.users&^g.users == 0:
				others = append(others, u.extent)
			}
			if len(firsts) == triggersEach {
				break
			}
		}
		if own = append(own, firsts...); len(firsts) > 0 {
			before = append(before, others...)
		}
	}
	return own, before
}

// units cuts a pack into units, the first of which are shorter.
func units(items []*item) (out [][]chunk.Ref) {
	limit, size := int64(firstUnit), int64(0)
	var now []chunk.Ref
	for _, it := range items {
		now = append(now, it.ref)
		if size += int64(it.ref.Length); size >= limit || len(now) == maxUnitChunks {
			out, now, size, limit = append(out, now), nil, 0, min(2*limit, unitPlain)
		}
	}
	if len(now) > 0 {
		out = append(out, now)
	}
	return out
}
