package device

import (
	"context"
	"errors"

	"lighter/format/chunk"
	"lighter/format/index"
)

// locations are what a device knows of where its chunks are, until newer locations arrive.
type locations struct {
	known    *index.Locations // nil: none
	replaced context.Context  // done once there are newer ones
	replace  context.CancelFunc
}

func newLocations(known *index.Locations) *locations {
	l := &locations{known: known}
	l.replaced, l.replace = context.WithCancel(context.Background())
	return l
}

// SetLocations replaces the device's locations. Once it has returned, the previous ones are no
// longer needed: a read that would use them fails over to the new ones.
func (d *Device) SetLocations(locations *index.Locations) {
	d.locations.Swap(newLocations(locations)).replace()
}

// LocateWith sets what is called if a chunk is needed and the locations are missing, unreadable or
// wrong. locate fetches others and does not block. It returns a channel that is closed when the
// attempt has ended, successfully or not, or at once if none is made now. LocateWith is called
// before the device is added to a server, or never.
func (d *Device) LocateWith(locate func() <-chan struct{}) { d.locate = locate }

// Unit returns the unit that holds the chunk of an extent. ok is false if the locations are missing
// or unreadable. They are a hint: without them the chunk is requested by its ID.
func (d *Device) Unit(extent int64) (unit chunk.Unit, ok bool) {
	for {
		l := d.locations.Load()
		if l.known == nil {
			return chunk.Unit{}, false
		}
		unit, err := l.known.Unit(extent)
		if err == nil {
			return unit, true
		}
		if d.locations.Load() == l {
			d.log.Debug("location unknown", "extent", extent, "err", err)
			return chunk.Unit{}, false
		}
	}
}

// fetchOne fills one part. Not every origin finds a chunk by its ID (a mirror does not). So a read
// with missing or wrong locations starts over once newer ones arrive.
func (d *Device) fetchOne(ctx context.Context, p part) error {
	for {
		var err error
		l, ok := d.locations.Load(), false
		switch p.ref.Unit, ok = d.Unit(p.extent); {
		case d.locate == nil:
			return d.chunks.Read(ctx, p.ref, p.offset, p.dst, nil)
		case ok:
			err = d.fetchLocated(ctx, p, l)
		default:
			err = d.fetchUnlocated(ctx, p, l)
		}
		if err == nil || ctx.Err() != nil || l.replaced.Err() == nil {
			return err
		}
	}
}

// fetchLocated reads a chunk from the unit in p.ref. Each time that the chunk is not there, it
// requests newer locations, and stops if there are some already. If no origin has the chunk, it
// waits for the request in flight.
func (d *Device) fetchLocated(ctx context.Context, p part, l *locations) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var newer <-chan struct{}
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() {
		newer = d.locate()
		if l.replaced.Err() != nil {
			stop()
		}
	})
	return awaitLocations(reading, newer, err)
}

// fetchUnlocated reads a chunk by its ID, until there are locations newer than l. If no origin
// finds the chunk, it waits for the locations in flight.
func (d *Device) fetchUnlocated(ctx context.Context, p part, l *locations) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.replaced, stop)()
	tried := d.locate()
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() { tried = d.locate() })
	return awaitLocations(reading, tried, err)
}

// awaitLocations waits until an attempt to fetch locations has ended, if err says that no origin
// has the chunk. It returns err.
func awaitLocations(ctx context.Context, tried <-chan struct{}, err error) error {
	if errors.Is(err, chunk.ErrNotFound) {
		select {
		case <-tried:
		case <-ctx.Done():
		}
	}
	return err
}
