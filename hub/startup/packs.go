package startup

import (
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

const (
	// unitPlain is the length of a unit in plain bytes, and firstUnit that of a
	// pack's first one: somebody may wait for it.
	unitPlain = 512 << 10
	firstUnit = 96 << 10
	// maxUnitChunks bounds the chunks of a unit, far below what the format takes.
	maxUnitChunks = 8192

	// triggersEach is how many chunks of each way into a pack are its triggers.
	triggersEach = 4
)

// packs makes packs of the groups.
func (p *plan) packs() []Pack {
	var out []Pack
	left := index.MaxTriggers
	for _, g := range p.groups {
		pack := Pack{Units: units(g.items), AtMount: g.mount}
		for _, it := range g.items {
			pack.Bytes += int64(it.ref.Length)
		}
		if !g.mount {
			triggers := p.ways(g)
			pack.Triggers = triggers[:min(len(triggers), left)]
			left -= len(pack.Triggers)
		}
		out = append(out, pack)
	}
	return out
}

// ways returns the chunks of a group by which each workload comes to it.
func (p *plan) ways(g *group) (triggers []int64) {
	in := make(map[chunk.ID]bool, len(g.items))
	for _, it := range g.items {
		in[it.ref.ID] = true
	}
	for w, s := range p.all {
		if !g.users.has(w) {
			continue
		}
		found := 0
		for _, u := range s.uses {
			if in[u.ref.ID] {
				triggers = append(triggers, u.extent)
				found++
			}
			if found == triggersEach {
				break
			}
		}
	}
	slices.Sort(triggers)
	return slices.Compact(triggers)
}

// units cuts a pack: the first units are shorter.
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
