package device

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

// Chunks is where a device's bytes come from (store.Tier).
type Chunks interface {
	// Cached fills dst with the chunk's bytes from offset on, if they are here.
	Cached(ref chunk.Ref, offset int, dst []byte) bool
	// Read does the same from wherever they are.
	Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte) error
	// Warm brings the chunk here, for nobody who waits.
	Warm(ctx context.Context, ref chunk.Ref) error
}

// faultChunks is how many chunks one fault asks for at a time.
const faultChunks = 16

// Device is the data device of one tree: it answers faults. This is the read
// path; what is below is chunk by chunk.
type Device struct {
	extents   *index.Map
	locations *index.Locations // nil: chunks are asked for by their IDs
	chunks    Chunks
	reader    prefetch.Sequential
	ahead     *Ahead
	log       *slog.Logger

	faults atomic.Int64
	bytes  atomic.Int64
	missed atomic.Int64
}

// New makes the device of the tree that extents belongs to. What is worth
// reading ahead it leaves to ahead.
func New(extents *index.Map, locations *index.Locations, ahead *Ahead, log *slog.Logger) *Device {
	return &Device{extents: extents, locations: locations, chunks: ahead.chunks, ahead: ahead, log: log}
}

// Stats are a device's figures since it was made.
type Stats struct {
	Faults int64 `json:"faults"`
	Bytes  int64 `json:"bytes"`      // that faults asked for
	Missed int64 `json:"bytesAtHub"` // of these, bytes that were not on this machine
}

// Stats returns the figures.
func (d *Device) Stats() Stats {
	return Stats{Faults: d.faults.Load(), Bytes: d.bytes.Load(), Missed: d.missed.Load()}
}

// part is what one extent contributes to a fault.
type part struct {
	ref    chunk.Ref
	offset int // in the chunk
	dst    []byte
}

// ReadAt answers one fault: it fills dst from offset on, or returns an error.
// Never less: the kernel would take what is missing for zeros.
func (d *Device) ReadAt(ctx context.Context, dst []byte, offset int64) error {
	d.faults.Add(1)
	d.bytes.Add(int64(len(dst)))
	var missing []part
	err := d.parts(dst, offset, func(p part) {
		if !d.chunks.Cached(p.ref, p.offset, p.dst) {
			missing = append(missing, p)
		}
	})
	if err != nil {
		return fmt.Errorf("read %d bytes at %d: %w", len(dst), offset, err)
	}
	d.readAhead(d.reader.Read(offset, int64(len(dst))), offset)
	if len(missing) == 0 {
		return nil
	}
	return d.fetch(ctx, missing)
}

// parts calls fn for each extent that lies in the range, and zeroes what none
// covers.
func (d *Device) parts(dst []byte, offset int64, fn func(part)) error {
	at, end := offset, offset+int64(len(dst))
	i, err := d.extents.Find(offset)
	for ; err == nil && i < d.extents.Extents; i++ {
		var e index.Extent
		if e, err = d.extents.Extent(i); err != nil || e.Offset >= end {
			break
		}
		from, to := max(e.Offset, offset), min(e.End(), end)
		clear(dst[at-offset : from-offset])
		fn(part{ref: d.ref(i, e), offset: int(from - e.Offset), dst: dst[from-offset : to-offset]})
		at = to
	}
	clear(dst[at-offset:])
	return err
}

// ref adds to an extent what the locations know. They are a hint: without them
// the chunk is asked for by its ID.
func (d *Device) ref(i int64, e index.Extent) chunk.Ref {
	ref := chunk.Ref{ID: e.ID, Length: e.Length}
	if d.locations != nil {
		unit, err := d.locations.Unit(i)
		if err != nil {
			d.log.Debug("location unknown", "chunk", e.ID.Short(), "cause", err)
		}
		ref.Unit = unit
	}
	return ref
}

func (d *Device) fetch(ctx context.Context, missing []part) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(faultChunks)
	for _, p := range missing {
		d.missed.Add(int64(len(p.dst)))
		group.Go(func() error {
			// Another fault may have brought it meanwhile.
			if d.chunks.Cached(p.ref, p.offset, p.dst) {
				return nil
			}
			return d.chunks.Read(ctx, p.ref, p.offset, p.dst)
		})
	}
	return group.Wait()
}

// readAhead asks for the units of a range, as far as it belongs to the file
// that is being read at offset. It never waits.
func (d *Device) readAhead(r prefetch.Range, offset int64) {
	if r.To <= r.From {
		return
	}
	i, err := d.extents.Find(r.From)
	last := chunk.Unit{}
	for ; err == nil && i < d.extents.Extents; i++ {
		var e index.Extent
		if e, err = d.extents.Extent(i); err != nil || e.Offset >= r.To || e.First && e.Offset > offset {
			return
		}
		ref := d.ref(i, e)
		if ref.Unit == last && !last.IsZero() {
			continue
		}
		last = ref.Unit
		if !d.ahead.ask(ref) {
			return
		}
	}
}
