package index

import (
	"encoding/binary"
	"slices"

	"lighter/format/chunk"
)

// Locations name the unit of each extent's chunk (record i belongs to extent i), and the tree's
// startup packs. They are a hint: only speed depends on them, and a hub may change them at any
// time. docs/format.md has the bytes.
const (
	// LocationsFormat is the number of the format of locations.
	LocationsFormat = 3

	locationsMagic = "LIGHTLOC"

	// Sizes in bytes.
	locationsHeader = 68        // of the header
	startupSize     = 16        // of a startup pack's entry
	triggerSize     = 4         // of a trigger
	unitSize        = 4         // of a unit's entry
	locationSize    = 8         // of a record
	maxUnitBytes    = 4_718_592 // of one encoded unit

	scanRecords = 8192       // records that are read at a time: 64 KiB
	unknownPack = ^uint32(0) // the pack number of a record whose unit is unknown
	atMount     = 1          // flag of a startup pack: fetch it at mount
	maxPacks    = 1 << 20    // packs of one tree; a reader has up to 32 MiB of IDs in memory

	// MaxStartups limits the startup packs of one tree. MaxTriggers and MaxUnits limit the triggers
	// and units of all these packs together.
	MaxStartups = 64
	MaxTriggers = 4096
	MaxUnits    = 65_536 // also the limit of one pack, in format/pack
)

// Startup is a startup pack: its chunks are used together by starts of the tree, and are stored in
// the order of their first use.
type Startup struct {
	Pack     chunk.ID
	Units    []uint32 // sizes of the pack's units, encoded, in bytes; at least one
	AtMount  bool     // fetch it when the tree is mounted or sooner
	Triggers []int64  // numbers of extents, ascending: fetch it when one of them is read
}

// Bytes returns the encoded size of all units.
func (s *Startup) Bytes() (n int64) {
	for _, unit := range s.Units {
		n += int64(unit)
	}
	return n
}

// LocationsBuilder collects the locations of one tree's extents, in order.
type LocationsBuilder struct {
	tree     chunk.ID
	packs    map[chunk.ID]uint32
	ids      []byte
	records  []byte
	startups []Startup
}

// NewLocations starts the locations of a tree.
func NewLocations(tree chunk.ID) *LocationsBuilder {
	return &LocationsBuilder{tree: tree, packs: map[chunk.ID]uint32{}}
}

// Add appends the location of the next extent. The zero unit means "unknown". A unit is recorded as
// unknown if the locations name 2^20 other packs already.
func (b *LocationsBuilder) Add(u chunk.Unit) {
	which := unknownPack
	if !u.IsZero() {
		var known bool
		switch which, known = b.packs[u.Pack]; {
		case known:
		case len(b.packs) == maxPacks:
			which = unknownPack
		default:
			which = uint32(len(b.packs))
			b.packs[u.Pack] = which
			b.ids = append(b.ids, u.Pack[:]...)
		}
	}
	b.records = binary.LittleEndian.AppendUint32(b.records, which)
	b.records = binary.LittleEndian.AppendUint32(b.records, u.N)
}

// Startup appends a startup pack. If several packs are wanted at the same time, nodes fetch small
// packs first, and the others in this order. Encode sorts each pack's triggers. It leaves out what
// the format does not allow: packs that have no chunk of the tree or were appended before, packs
// without units or with a unit of an invalid size, packs and triggers beyond the limits, triggers
// that are not an extent's number, and repeated ones.
func (b *LocationsBuilder) Startup(s Startup) { b.startups = append(b.startups, s) }

// Encode returns the encoded locations.
func (b *LocationsBuilder) Encode() []byte {
	startups := b.valid()
	triggers, units := 0, 0
	for _, s := range startups {
		triggers += len(s.Triggers)
		units += len(s.Units)
	}
	size := locationsHeader + startupSize*len(startups) + triggerSize*triggers + unitSize*units
	out := make([]byte, 0, size+len(b.ids)+len(b.records))
	out = append(out, locationsMagic...)
	out = binary.LittleEndian.AppendUint32(out, LocationsFormat)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.packs)))
	out = binary.LittleEndian.AppendUint64(out, uint64(len(b.records)/locationSize))
	out = append(out, b.tree[:]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(startups)))
	out = binary.LittleEndian.AppendUint32(out, uint32(triggers))
	out = binary.LittleEndian.AppendUint32(out, uint32(units))
	for _, s := range startups {
		out = binary.LittleEndian.AppendUint32(out, b.packs[s.Pack])
		out = binary.LittleEndian.AppendUint32(out, uint32(len(s.Units)))
		out = binary.LittleEndian.AppendUint32(out, flagsOf(s))
		out = binary.LittleEndian.AppendUint32(out, uint32(len(s.Triggers)))
	}
	for _, s := range startups {
		for _, t := range s.Triggers {
			out = binary.LittleEndian.AppendUint32(out, uint32(t))
		}
	}
	for _, s := range startups {
		for _, bytes := range s.Units {
			out = binary.LittleEndian.AppendUint32(out, bytes)
		}
	}
	out = append(out, b.ids...)
	return append(out, b.records...)
}

func flagsOf(s Startup) uint32 {
	if s.AtMount {
		return atMount
	}
	return 0
}

// valid returns the startup packs without what the format does not allow.
func (b *LocationsBuilder) valid() []Startup {
	var out []Startup
	extents, triggersLeft, unitsLeft := int64(len(b.records)/locationSize), MaxTriggers, MaxUnits
	named := map[chunk.ID]bool{}
	for _, s := range b.startups {
		if _, used := b.packs[s.Pack]; !used || named[s.Pack] || len(out) == MaxStartups ||
			!areValid(s.Units) || len(s.Units) > unitsLeft {
			continue
		}
		named[s.Pack] = true
		triggers := slices.DeleteFunc(slices.Clone(s.Triggers), func(t int64) bool { return t < 0 || t >= extents })
		slices.Sort(triggers)
		triggers = slices.Compact(triggers)
		s.Triggers = triggers[:min(len(triggers), triggersLeft)]
		triggersLeft -= len(s.Triggers)
		unitsLeft -= len(s.Units)
		out = append(out, s)
	}
	return out
}

// areValid reports whether a pack may have units of these sizes.
func areValid(units []uint32) bool {
	return len(units) > 0 && !slices.ContainsFunc(units, func(n uint32) bool { return n == 0 || n > maxUnitBytes })
}
