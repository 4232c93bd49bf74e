package startup

import (
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

const (
	// A group longer than firstSegment, in plain bytes, is cut, each segment as long
	// as all before it. It is fetched when a start has read half of the one before:
	// soon enough for a link with megabytes on their way, and whoever leaves the way
	// gets a bounded multiple of what he uses.
	firstSegment = 32 << 20

	// unitPlain is the length of a unit in plain bytes, and firstUnit that of a
	// pack's first one: somebody may wait for it.
	unitPlain = 512 << 10
	firstUnit = 96 << 10
	// maxUnitChunks bounds the chunks of a unit, far below what the format takes.
	maxUnitChunks = 8192

	// triggersEach is how many chunks of each way into a pack are its triggers.
	triggersEach = 4
)

// segments cuts the chunks of a group.
func segments(items []*item) (out [][]*item) {
	size, limit, from := int64(0), int64(firstSegment), 0 // from the group's start
	for i, it := range items {
		if size += int64(it.ref.Length); size >= limit && len(items)-i > fewest {
			out = append(out, items[from:i+1])
			from, limit = i+1, 2*size
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

// onTheWay returns chunks in the middle of a segment.
func onTheWay(items []*item) (triggers []int64) {
	from := len(items) / 2
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
		if size += int64(it.ref.Length); size >= limit || len(now) == maxUnitChunks {
			out, now, size, limit = append(out, now), nil, 0, min(2*limit, unitPlain)
		}
	}
	if len(now) > 0 {
		out = append(out, now)
	}
	return out
}
