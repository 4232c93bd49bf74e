package device

import "slices"

// Observer gets a report of each read of a device.
type Observer interface {
	// Observe reports a read. A device calls its observers in the order in which they were added,
	// for each read, after it has looked for cached chunks and before it fetches missing ones.
	// Calls are concurrent. The reader waits for them, so Observe must not block.
	Observe(Read)
}

// Read is a read of a device.
type Read struct {
	Offset, Length int64 // in bytes
	First, End     int64 // the numbers of the extents in the range are First to End-1
	Missing        int64 // number of the first extent in the range whose chunk is not cached; -1: all are cached
}

// Observe adds an observer. The device reports its reads to o until stop is called.
func (d *Device) Observe(o Observer) (stop func()) {
	d.change(func(list []Observer) []Observer { return append(list, o) })
	return func() {
		d.change(func(list []Observer) []Observer {
			return slices.DeleteFunc(list, func(other Observer) bool { return other == o })
		})
	}
}

// change replaces the list of observers by a new one. Reads use the list without a lock.
func (d *Device) change(fn func([]Observer) []Observer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := fn(slices.Clone(*d.observers.Load()))
	d.observers.Store(&list)
}
