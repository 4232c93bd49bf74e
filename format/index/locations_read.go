package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"lighter/format/chunk"
)

// Locations reads single locations from a file, when a caller asks for them. It keeps the IDs of
// the packs in memory, 32 bytes each, and the startup packs.
type Locations struct {
	r        io.ReaderAt
	packs    []byte // IDs
	startups []Startup
	records  int64 // offset of the records in r
	n        int64 // number of records
}

// OpenLocations opens the locations of a tree. r has size bytes. extents is the number of the
// tree's extents, or -1 if it is not known yet.
func OpenLocations(r io.ReaderAt, size int64, tree chunk.ID, extents int64) (*Locations, error) {
	var h [locationsHeader]byte
	if n, err := r.ReadAt(h[:], 0); n < locationsHeader {
		return nil, fmt.Errorf("read the locations: %w", noEOF(err))
	}
	format := binary.LittleEndian.Uint32(h[8:])
	packs := int64(binary.LittleEndian.Uint32(h[12:]))
	n := binary.LittleEndian.Uint64(h[16:])
	startups := int64(binary.LittleEndian.Uint32(h[56:]))
	triggers := int64(binary.LittleEndian.Uint32(h[60:]))
	units := int64(binary.LittleEndian.Uint32(h[64:]))
	if extents < 0 {
		extents = int64(min(n, uint64(size)))
	}
	begin := locationsHeader + startups*startupSize + triggers*triggerSize + units*unitSize
	switch {
	case string(h[:8]) != locationsMagic || format != LocationsFormat:
		return nil, fmt.Errorf("not locations of format %d", LocationsFormat)
	case chunk.ID(h[24:56]) != tree:
		return nil, fmt.Errorf("locations of tree %s, not of %s", chunk.ID(h[24:56]).Short(), tree.Short())
	case startups > min(packs, MaxStartups) || triggers > MaxTriggers || units > MaxUnits:
		return nil, fmt.Errorf("locations with %d startup packs, %d triggers and %d units are out of bounds",
			startups, triggers, units)
	case n != uint64(extents) || packs > min(extents, maxPacks) ||
		size != begin+packs*chunk.Size+extents*locationSize:
		return nil, fmt.Errorf("locations of %d bytes, with %d records and %d packs, do not fit %d extents",
			size, n, packs, extents)
	}
	l := &Locations{r: r, n: extents, records: begin + packs*chunk.Size}
	lists := make([]byte, begin-locationsHeader)
	l.packs = make([]byte, packs*chunk.Size)
	for _, part := range []struct {
		b  []byte
		at int64
	}{{lists, locationsHeader}, {l.packs, begin}} {
		if _, err := r.ReadAt(part.b, part.at); err != nil && len(part.b) > 0 {
			return nil, fmt.Errorf("read the locations: %w", noEOF(err))
		}
	}
	table, lists := lists[:startups*startupSize], lists[startups*startupSize:]
	if err := l.readStartups(table, lists[:triggers*triggerSize], lists[triggers*triggerSize:]); err != nil {
		return nil, err
	}
	return l, nil
}

// MaxLocations returns the maximum size in bytes of the locations of a tree with that many extents.
func MaxLocations(extents int64) int64 {
	return locationsHeader + MaxStartups*startupSize + MaxTriggers*triggerSize + MaxUnits*unitSize +
		min(extents, maxPacks)*chunk.Size + extents*locationSize
}

// readStartups reads the table of startup packs, and the lists of their triggers and unit sizes.
func (l *Locations) readStartups(table, triggers, units []byte) error {
	named := map[chunk.ID]bool{}
	for ; len(table) > 0; table = table[startupSize:] {
		s, err := l.readStartup(table)
		if err != nil {
			return fmt.Errorf("startup pack %d of the locations: %w", len(l.startups), err)
		}
		if named[s.Pack] {
			return fmt.Errorf("the locations name startup pack %s twice", s.Pack.Short())
		}
		named[s.Pack] = true
		count := int64(binary.LittleEndian.Uint32(table[12:]))
		if count > int64(len(triggers)/triggerSize) {
			return fmt.Errorf("startup pack %s has %d triggers, only %d are left", s.Pack.Short(), count,
				len(triggers)/triggerSize)
		}
		s.Triggers = slices.Grow(s.Triggers, int(count))
		for last := int64(-1); count > 0; count-- {
			t := int64(binary.LittleEndian.Uint32(triggers))
			if t <= last || t >= l.n {
				return fmt.Errorf("startup pack %s has trigger %d after %d, of %d extents", s.Pack.Short(), t, last,
					l.n)
			}
			s.Triggers = append(s.Triggers, t)
			last, triggers = t, triggers[triggerSize:]
		}
		if count = int64(binary.LittleEndian.Uint32(table[4:])); count > int64(len(units)/unitSize) {
			return fmt.Errorf("startup pack %s has %d units, only %d are left", s.Pack.Short(), count,
				len(units)/unitSize)
		}
		s.Units = make([]uint32, count)
		_, _ = binary.Decode(units, binary.LittleEndian, s.Units) // there are enough, as checked above
		units = units[count*unitSize:]
		if !areValid(s.Units) {
			return fmt.Errorf("startup pack %s has no units, or one whose size is out of bounds", s.Pack.Short())
		}
		l.startups = append(l.startups, s)
	}
	if len(triggers) > 0 || len(units) > 0 {
		return errors.New("the locations have triggers or units that belong to no startup pack")
	}
	return nil
}

// readStartup reads one entry of the table, without its triggers and units.
func (l *Locations) readStartup(b []byte) (Startup, error) {
	which, flags := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[8:])
	switch {
	case int64(which) >= int64(len(l.packs)/chunk.Size):
		return Startup{}, fmt.Errorf("pack %d is out of bounds", which)
	case flags&^atMount != 0:
		return Startup{}, fmt.Errorf("unknown flags %#x", flags)
	}
	return Startup{Pack: l.pack(which), AtMount: flags&atMount != 0}, nil
}

func (l *Locations) pack(which uint32) chunk.ID {
	return chunk.ID(l.packs[int(which)*chunk.Size:][:chunk.Size])
}

// Startups returns the tree's startup packs, in the order of the file, which is that of
// LocationsBuilder.Startup. The caller must not change their Units and Triggers.
func (l *Locations) Startups() []Startup { return slices.Clone(l.startups) }

// Unit returns the unit of extent i's chunk, or the zero unit if it is unknown.
func (l *Locations) Unit(i int64) (chunk.Unit, error) {
	if i < 0 || i >= l.n {
		return chunk.Unit{}, fmt.Errorf("location %d of %d: %w", i, l.n, chunk.ErrNotFound)
	}
	var b [locationSize]byte
	if _, err := l.r.ReadAt(b[:], l.records+i*locationSize); err != nil {
		return chunk.Unit{}, fmt.Errorf("read location %d: %w", i, noEOF(err))
	}
	return l.decode(i, b[:])
}

// decode decodes record i.
func (l *Locations) decode(i int64, b []byte) (chunk.Unit, error) {
	which := binary.LittleEndian.Uint32(b)
	if which == unknownPack {
		return chunk.Unit{}, nil
	}
	if int64(which) >= int64(len(l.packs)/chunk.Size) {
		return chunk.Unit{}, fmt.Errorf("location %d is out of bounds", i)
	}
	return chunk.Unit{Pack: l.pack(which), N: binary.LittleEndian.Uint32(b[4:])}, nil
}

// Each calls fn for each extent, in order, with the unit of its chunk (zero: unknown). It stops at
// the first error.
func (l *Locations) Each(fn func(extent int64, u chunk.Unit) error) error {
	return l.scan(func(i int64, record []byte) error {
		u, err := l.decode(i, record)
		if err != nil {
			return err
		}
		return fn(i, u)
	})
}

// In calls fn, in order, for each extent whose chunk is in pack. n is the number of the chunk's
// unit. In is four times as fast as Each.
func (l *Locations) In(pack chunk.ID, fn func(extent int64, n uint32)) error {
	wanted := uint32(0)
	for int64(wanted) < int64(len(l.packs)/chunk.Size) && l.pack(wanted) != pack {
		wanted++
	}
	return l.scan(func(i int64, record []byte) error {
		switch which := binary.LittleEndian.Uint32(record); {
		case which == unknownPack:
		case int64(which) >= int64(len(l.packs)/chunk.Size):
			return fmt.Errorf("location %d is out of bounds", i)
		case which == wanted:
			fn(i, binary.LittleEndian.Uint32(record[4:]))
		}
		return nil
	})
}

// scan calls fn for each record, in order.
func (l *Locations) scan(fn func(i int64, record []byte) error) error {
	buf := make([]byte, locationSize*min(scanRecords, l.n))
	for at := int64(0); at < l.n; at += scanRecords {
		b := buf[:locationSize*min(scanRecords, l.n-at)]
		if _, err := l.r.ReadAt(b, l.records+at*locationSize); err != nil {
			return fmt.Errorf("read location %d: %w", at, noEOF(err))
		}
		for i := at; len(b) > 0; i, b = i+1, b[locationSize:] {
			if err := fn(i, b); err != nil {
				return err
			}
		}
	}
	return nil
}
