package index

import (
	"encoding/binary"
	"slices"

	"lighter/format/chunk"
)

// Locations say in which unit each extent's chunk lies now: record i belongs to
// extent i. They also name the tree's startup packs. They are a hint: nothing
// depends on their truth but speed, and a hub may give other ones tomorrow.
// docs/format.md has the bytes.
const (
	locationsMagic  = "LIGHTLOC"
	locationsFormat = 3
	locationsHeader = 68
	startupSize     = 16
	triggerSize     = 4
	unitSize        = 4
	locationSize    = 8
	unknownPack     = ^uint32(0)
	maxPacks        = 1 << 20 // 32 MiB of names, which who reads them keeps
	atMount         = 1       // a startup pack's flag

	// MaxStartups bounds the startup packs of one tree, MaxTriggers and MaxUnits the
	// triggers and the units of all of them.
	MaxStartups = 64
	MaxTriggers = 4096
	MaxUnits    = 65_536 // as many as format/pack has in one

	maxUnitBytes = 4_718_592 // of a whole unit, encoded

	// The format before says of a startup pack only how large all its units are, in an
	// entry that is longer.
	formerFormat  = 2
	formerHeader  = 64
	formerStartup = 24
)

// Startup is a pack whose chunks are those that starts of the tree use
// together, in order of first use: so all of it is worth fetching at once.
type Startup struct {
	Pack     chunk.ID
	Units    []uint32 // how many bytes each of the pack's units has, encoded; at least one unit
	AtMount  bool     // fetch it as soon as the tree is wanted
	Triggers []int64  // extents of whose reading it follows that the pack is wanted, ascending
}

// Bytes returns how many bytes all units have, encoded.
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

// Add appends the location of the next extent; the zero unit is "unknown", and so is one
// of more than 2^20 packs.
func (b *LocationsBuilder) Add(u chunk.Unit) {
	which := unknownPack
	if !u.IsZero() {
		var known bool
		switch which, known = b.packs[u.Pack]; {
		case known:
		case len(b.packs) == maxPacks: // there is no room for its name
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

// Startup appends a startup pack, in the order in which nodes shall fetch them.
// What the format has no room for is left out when they are encoded, as it is
// all a hint: packs that no extent lies in or that were named before, packs and
// triggers beyond the bounds, triggers that are no extent.
func (b *LocationsBuilder) Startup(s Startup) { b.startups = append(b.startups, s) }

// Encode returns the locations' bytes.
func (b *LocationsBuilder) Encode() []byte {
	startups := b.sound()
	triggers, units := 0, 0
	for _, s := range startups {
		triggers += len(s.Triggers)
		units += len(s.Units)
	}
	out := make([]byte, 0, locationsHeader+startupSize*len(startups)+triggerSize*triggers+unitSize*units+len(b.ids)+len(b.records))
	out = append(out, locationsMagic...)
	out = binary.LittleEndian.AppendUint32(out, locationsFormat)
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

// sound returns the startup packs as the format allows them.
func (b *LocationsBuilder) sound() []Startup {
	var out []Startup
	extents, triggersLeft, unitsLeft := int64(len(b.records)/locationSize), MaxTriggers, MaxUnits
	named := map[chunk.ID]bool{}
	for _, s := range b.startups {
		if _, used := b.packs[s.Pack]; !used || named[s.Pack] || len(out) == MaxStartups || !areSound(s.Units) || len(s.Units) > unitsLeft {
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

// areSound tells whether a pack may have units of so many bytes.
func areSound(units []uint32) bool {
	return len(units) > 0 && !slices.ContainsFunc(units, func(n uint32) bool { return n == 0 || n > maxUnitBytes })
}
