package device

import (
	"context"
	"errors"

	"lighter/format/chunk"
	"lighter/format/index"
)

// locations are the locations of a device's chunks, until newer locations replace them.
type locations struct {
	known    *index.Locations // nil: the device has no locations
	replaced context.Context  // done once newer locations have replaced these
	replace  context.CancelFunc
}

func newLocations(known *index.Locations) *locations {
	l := &locations{known: known}
	l.replaced, l.replace = context.WithCancel(context.Background())
	return l
}

// SetLocations replaces the device's locations. After it has returned, the file of the previous
// locations may be closed: a read that fails for that reason tries again with the new locations.
func (d *Device) SetLocations(locations *index.Locations) {
	d.locations.Swap(newLocations(locations)).replace()
}

// LocateWith sets the function that a read calls if the locations are missing, unreadable or wrong.
// locate starts an attempt to fetch newer locations, or does nothing if the last attempt was only a
// short time ago. It does not block. It returns a channel that is closed when the last attempt has
// ended, with or without success. LocateWith is called before the device is added to a server, or
// never.
func (d *Device) LocateWith(locate func() <-chan struct{}) { d.locate = locate }

// Unit returns the unit of an extent's chunk. ok is false if the locations are missing or
// unreadable. Locations are a hint: without them the chunk is requested by its ID.
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
			d.log.Debug("cannot read a location: the chunk is requested by its ID", "extent", extent, "err", err)
			return chunk.Unit{}, false
		}
	}
}

// fetchOne fills one part. Some origins, mirrors for example, cannot find a chunk by its ID. So a
// read with missing or wrong locations starts over when newer locations arrive.
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

// fetchLocated reads a chunk from the unit in p.ref. Each time that the chunk is not in that unit,
// fetchLocated requests newer locations, or stops if they have arrived already. If no origin has
// the chunk, fetchLocated waits until the attempt to fetch newer locations has ended.
func (d *Device) fetchLocated(ctx context.Context, p part, l *locations) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var attempt <-chan struct{} // closed when the attempt to fetch newer locations has ended
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() {
		attempt = d.locate()
		if l.replaced.Err() != nil {
			stop()
		}
	})
	return awaitLocations(reading, attempt, err)
}

// fetchUnlocated reads a chunk by its ID, and stops when locations newer than l arrive. If no
// origin finds the chunk, fetchUnlocated waits until the attempt to fetch locations has ended.
func (d *Device) fetchUnlocated(ctx context.Context, p part, l *locations) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.replaced, stop)()
	attempt := d.locate()
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() { attempt = d.locate() })
	return awaitLocations(reading, attempt, err)
}

// awaitLocations returns err. If err says that no origin has the chunk, it first waits until the
// attempt to fetch locations has ended.
func awaitLocations(ctx context.Context, attempt <-chan struct{}, err error) error {
	if errors.Is(err, chunk.ErrNotFound) {
		select {
		case <-attempt:
		case <-ctx.Done():
		}
	}
	return err
}
