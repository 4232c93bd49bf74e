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

	// triggersEach is how many chunks of each way into a pack are its triggers, and how
	// many of packs from which it follows.
	triggersEach = 4
)

// packs makes packs of the groups.
func (p *plan) packs() []Pack {
	var out []Pack
	left := index.MaxTriggers
	in := map[chunk.ID]*group{}
	for _, g := range p.groups {
		for _, it := range g.items {
			in[it.ref.ID] = g
		}
	}
	for _, g := range p.groups {
		pack := Pack{Units: units(g.items), AtMount: g.mount}
		for _, it := range g.items {
			pack.Bytes += int64(it.ref.Length)
		}
		if !g.mount {
			triggers := p.ways(g, in)
			pack.Triggers = triggers[:min(len(triggers), left)]
			left -= len(pack.Triggers)
		}
		out = append(out, pack)
	}
	return out
}

// ways returns the chunks by which each workload comes to a group: the first that it
// uses of it, and what it uses before them of groups that are nobody's but this one's
// users'. Of those this one follows as surely, and is there a round trip earlier.
func (p *plan) ways(g *group, in map[chunk.ID]*group) (triggers []int64) {
	for w, s := range p.all {
		if !g.users.has(w) {
			continue
		}
		own, before := 0, 0
		for _, u := range s.uses {
			switch h := in[u.ref.ID]; {
			case h == g:
				own++
			case own > 0 || before == triggersEach || s.count == 0 || h == nil || h.users&^g.users != 0:
				continue
			default:
				before++
			}
			triggers = append(triggers, u.extent)
			if own == triggersEach {
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
