package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"lighter/format/chunk"
)

// scanRecords is how many records are read at a time.
const scanRecords = 8192

// Locations reads locations from a file, record by record. It keeps the names
// of the packs in memory, 32 bytes each, and what is said of startup packs.
type Locations struct {
	r        io.ReaderAt
	packs    []byte
	startups []Startup
	records  int64 // where they begin
	n        int64
}

// OpenLocations opens the locations of the given tree, which has the given
// number of extents (-1: not known yet), from the size bytes of r.
func OpenLocations(r io.ReaderAt, size int64, tree chunk.ID, extents int64) (*Locations, error) {
	var h [locationsHeader]byte
	if n, err := r.ReadAt(h[:], 0); n < formerHeader || err != nil && err != io.EOF {
		return nil, fmt.Errorf("read the locations: %w", noEOF(err))
	}
	format, header, entry := binary.LittleEndian.Uint32(h[8:]), int64(locationsHeader), int64(startupSize)
	packs := int64(binary.LittleEndian.Uint32(h[12:]))
	n := binary.LittleEndian.Uint64(h[16:])
	startups := int64(binary.LittleEndian.Uint32(h[56:]))
	triggers := int64(binary.LittleEndian.Uint32(h[60:]))
	units := int64(binary.LittleEndian.Uint32(h[64:]))
	if format == formerFormat {
		header, entry, units = formerHeader, formerStartup, 0
	}
	if extents < 0 {
		extents = int64(min(n, uint64(size)))
	}
	begin := header + startups*entry + triggers*triggerSize + units*unitSize
	switch {
	case string(h[:8]) != locationsMagic || format != locationsFormat && format != formerFormat:
		return nil, fmt.Errorf("not locations of format %d or %d", formerFormat, locationsFormat)
	case chunk.ID(h[24:56]) != tree:
		return nil, fmt.Errorf("locations of tree %s, not of %s", chunk.ID(h[24:56]).Short(), tree.Short())
	case startups > min(packs, MaxStartups) || triggers > MaxTriggers || units > MaxUnits:
		return nil, fmt.Errorf("locations with %d startup packs, %d triggers and %d units of them", startups, triggers, units)
	case n != uint64(extents) || packs > min(extents, maxPacks) || size != begin+packs*chunk.Size+extents*locationSize:
		return nil, fmt.Errorf("locations of %d bytes do not fit %d extents", size, extents)
	}
	l := &Locations{r: r, n: extents, records: begin + packs*chunk.Size}
	said := make([]byte, begin-header)
	l.packs = make([]byte, packs*chunk.Size)
	for _, part := range []struct {
		b  []byte
		at int64
	}{{said, header}, {l.packs, begin}} {
		if _, err := r.ReadAt(part.b, part.at); err != nil && len(part.b) > 0 {
			return nil, fmt.Errorf("read the locations: %w", noEOF(err))
		}
	}
	table, lists := said[:startups*entry], said[startups*entry:]
	sizes := lists[triggers*triggerSize:]
	if format == formerFormat {
		var err error
		if table, sizes, err = fromFormer(table); err != nil {
			return nil, err
		}
	}
	if err := l.readStartups(table, lists[:triggers*triggerSize], sizes); err != nil {
		return nil, err
	}
	return l, nil
}

// fromFormer returns a table of startup packs as it is now, and sizes of their units: each
// has as many bytes as they have on average.
func fromFormer(former []byte) (table, sizes []byte, err error) {
	left := uint64(MaxUnits)
	for ; len(former) > 0; former = former[formerStartup:] {
		table = append(table, former[:startupSize]...)
		units, size := uint64(binary.LittleEndian.Uint32(former[4:])), binary.LittleEndian.Uint64(former[16:])
		if units == 0 || units > left || size == 0 || size > units*maxUnitBytes {
			return nil, nil, fmt.Errorf("a startup pack of %d units of %d bytes in the locations", units, size)
		}
		left -= units
		for range units {
			sizes = binary.LittleEndian.AppendUint32(sizes, uint32((size+units-1)/units))
		}
	}
	return table, sizes, nil
}

// MaxLocations returns what the locations of so many extents take at most, in bytes.
func MaxLocations(extents int64) int64 {
	return locationsHeader + MaxStartups*startupSize + MaxTriggers*triggerSize + MaxUnits*unitSize + min(extents, maxPacks)*chunk.Size + extents*locationSize
}

// readStartups reads the table of startup packs and the lists of their triggers and of
// their units' sizes.
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
			return fmt.Errorf("startup pack %s has more triggers than there are", s.Pack.Short())
		}
		s.Triggers = slices.Grow(s.Triggers, int(count))
		for last := int64(-1); count > 0; count-- {
			t := int64(binary.LittleEndian.Uint32(triggers))
			if t <= last || t >= l.n {
				return fmt.Errorf("startup pack %s has trigger %d after %d, of %d extents", s.Pack.Short(), t, last, l.n)
			}
			s.Triggers = append(s.Triggers, t)
			last, triggers = t, triggers[triggerSize:]
		}
		if count = int64(binary.LittleEndian.Uint32(table[4:])); count > int64(len(units)/unitSize) {
			return fmt.Errorf("startup pack %s has more units than there are", s.Pack.Short())
		}
		s.Units = make([]uint32, count)
		for i := range s.Units {
			s.Units[i] = binary.LittleEndian.Uint32(units[i*unitSize:])
		}
		units = units[count*unitSize:]
		if !areSound(s.Units) {
			return fmt.Errorf("startup pack %s has no units, or one of a size that none has", s.Pack.Short())
		}
		l.startups = append(l.startups, s)
	}
	if len(triggers) > 0 || len(units) > 0 {
		return errors.New("triggers or units of no startup pack in the locations")
	}
	return nil
}

// readStartup reads one entry of the table, without what stands in the lists.
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

// Startups returns the tree's startup packs, in the order in which to fetch
// them. Nobody changes what their lists hold.
func (l *Locations) Startups() []Startup { return slices.Clone(l.startups) }

// Unit returns where the chunk of extent i was, or the zero unit.
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

// decode reads record i.
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

// Each calls fn for every extent, in order, with the unit of its chunk (zero:
// unknown). It reads 64 KiB at a time, and ends with the first error.
func (l *Locations) Each(fn func(extent int64, u chunk.Unit) error) error {
	return l.scan(func(i int64, record []byte) error {
		u, err := l.decode(i, record)
		if err != nil {
			return err
		}
		return fn(i, u)
	})
}

// In calls fn for every extent whose chunk is in a pack, in order, with the number of
// its unit. It takes a quarter of the time that Each does.
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

// scan calls fn for every record, in order.
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
