package device

import (
	"context"
	"errors"

	"lighter/format/chunk"
	"lighter/format/index"
)

// where is what a device knows of where its chunks lie, until it knows better.
type where struct {
	locations *index.Locations  // nil: nothing
	startup   map[chunk.ID]bool // the startup packs
	replaced  context.Context   // done when there is something newer
	replace   context.CancelFunc
}

func newWhere(locations *index.Locations) *where {
	w := &where{locations: locations, startup: map[chunk.ID]bool{}}
	if locations != nil {
		for _, s := range locations.Startups() {
			w.startup[s.Pack] = true
		}
	}
	w.replaced, w.replace = context.WithCancel(context.Background())
	return w
}

// SetLocations gives the device locations, or newer ones, at any time. Of the former
// ones nothing is needed when it returns: a read that is about to use them fails, and
// uses these.
func (d *Device) SetLocations(locations *index.Locations) {
	d.where.Swap(newWhere(locations)).replace()
	d.stream.follow(locations)
}

// Locator has locations fetched. Its methods do not wait: they return what is closed
// when that has ended, well or not, or is not tried now.
type Locator interface {
	// Locate is called when a chunk is needed and the locations are missing or cannot
	// be read.
	Locate() <-chan struct{}
	// Relocate is called when a chunk was not where they say.
	Relocate() <-chan struct{}
}

// LocateWith has a locator called. It is called before the device is added to a
// server, or not at all.
func (d *Device) LocateWith(l Locator) { d.locator = l }

// unit says where the chunk of an extent lies, and whether the locations could be
// asked. They are a hint: without them the chunk is asked for by its ID.
func (d *Device) unit(extent int64) (unit chunk.Unit, ok bool) {
	for {
		w := d.where.Load()
		if w.locations == nil {
			return chunk.Unit{}, false
		}
		unit, err := w.locations.Unit(extent)
		if err == nil {
			return unit, true
		}
		if d.where.Load() == w {
			d.log.Debug("location unknown", "extent", extent, "cause", err)
			return chunk.Unit{}, false
		}
	}
}

// isForeseen tells whether an extent's chunk is in a startup pack: it is known what else
// is read, and what is not.
func (d *Device) isForeseen(extent int64) bool {
	startup := d.where.Load().startup
	if len(startup) == 0 {
		return false
	}
	unit, _ := d.unit(extent)
	return startup[unit.Pack]
}

// fetchOne reads one chunk's part. Not every origin can find a chunk by its ID (a
// mirror cannot): a read without locations, or with wrong ones, goes on with others
// once they come.
func (d *Device) fetchOne(ctx context.Context, p part) error {
	for {
		var err error
		w, ok := d.where.Load(), false
		switch p.ref.Unit, ok = d.unit(p.extent); {
		case d.locator == nil:
			return d.chunks.Read(ctx, p.ref, p.offset, p.dst, nil)
		case ok:
			err = d.fetchLocated(ctx, p, w)
		default:
			err = d.fetchUnlocated(ctx, p, w)
		}
		if err == nil || ctx.Err() != nil || w.replaced.Err() == nil {
			return err
		}
	}
}

// fetchLocated reads what lies in a unit. Each time that the chunk was not there newer
// locations are asked for, and the read ends if there is something newer than w. What no
// origin has waits for those that are in flight.
func (d *Device) fetchLocated(ctx context.Context, p part, w *where) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var newer <-chan struct{}
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() {
		newer = d.locator.Relocate()
		if w.replaced.Err() != nil {
			stop()
		}
	})
	return await(reading, newer, err)
}

// fetchUnlocated reads by the chunk's ID, until there is something newer than w.
// What no origin finds like that waits for the locations that are in flight.
func (d *Device) fetchUnlocated(ctx context.Context, p part, w *where) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.replaced, stop)()
	tried := d.locator.Locate()
	err := d.chunks.Read(reading, p.ref, p.offset, p.dst, func() { tried = d.locator.Locate() })
	return await(reading, tried, err)
}

// await waits until locations have come, or do not, if err says that no origin has the
// chunk. It returns err.
func await(ctx context.Context, tried <-chan struct{}, err error) error {
	if errors.Is(err, chunk.ErrNotFound) {
		select {
		case <-tried:
		case <-ctx.Done():
		}
	}
	return err
}
