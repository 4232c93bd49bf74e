package startup

import (
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

const (
	// A group longer than firstSegment, in plain bytes, is cut, each segment twice
	// as long as the one before. The next one is fetched when a start reads on in
	// the one before, so that whoever leaves the way gets no more than he had, twice.
	firstSegment = 32 << 20

	// unitPlain is the length of a unit in plain bytes, and firstUnit that of a
	// pack's first one: somebody may wait for it.
	unitPlain = 512 << 10
	firstUnit = 96 << 10

	// triggersEach is how many chunks of each way into a pack are its triggers.
	triggersEach = 4
)

// segments cuts the chunks of a group.
func segments(items []*item) (out [][]*item) {
	size, limit, from := int64(0), int64(firstSegment), 0
	for i, it := range items {
		if size += int64(it.ref.Length); size >= limit && len(items)-i > fewest {
			out = append(out, items[from:i+1])
			from, size, limit = i+1, 0, 2*limit
		}
	}
	if from < len(items) {
		out = append(out, items[from:])
	}
	return out
}

// packs makes packs of the groups.
func (p *plan) packs() []Pack {
	var out []Pack
	left := index.MaxTriggers
	for _, g := range p.groups {
		parts := segments(g.items)
		for i, items := range parts {
			pack := Pack{Units: units(items), AtMount: g.mount && i == 0}
			for _, it := range items {
				pack.Bytes += int64(it.ref.Length)
			}
			if !pack.AtMount {
				triggers := p.ways(g, items)
				if i > 0 {
					triggers = append(triggers, onTheWay(parts[i-1])...)
				}
				slices.Sort(triggers)
				triggers = slices.Compact(triggers)
				pack.Triggers = triggers[:min(len(triggers), left)]
				left -= len(pack.Triggers)
			}
			out = append(out, pack)
		}
	}
	return out
}

// ways returns the chunks of a pack by which each workload comes to it.
func (p *plan) ways(g *group, items []*item) (triggers []int64) {
	in := make(map[chunk.ID]bool, len(items))
	for _, it := range items {
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
	return triggers
}

// onTheWay returns chunks behind the first quarter of a segment: whoever reads
// them goes on to the next, which has time to arrive.
func onTheWay(items []*item) (triggers []int64) {
	from := len(items) / 4
	for _, it := range items[from:min(from+2*triggersEach, len(items))] {
		triggers = append(triggers, it.extent)
	}
	return triggers
}

// units cuts a pack: the first units are shorter.
func units(items []*item) (out [][]chunk.Ref) {
	limit, size := int64(firstUnit), int64(0)
	var now []chunk.Ref
	for _, it := range items {
		now = append(now, it.ref)
		if size += int64(it.ref.Length); size >= limit {
			out, now, size, limit = append(out, now), nil, 0, min(2*limit, unitPlain)
		}
	}
	if len(now) > 0 {
		out = append(out, now)
	}
	return out
}
