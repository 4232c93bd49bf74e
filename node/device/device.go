// Package device answers reads of a tree's data with the bytes that the tree's ID stands for, whole,
// or with an error. A Device maps an offset to extents, and extents to chunks.
package device

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/fuse"
	"lighter/node/prefetch"
	"lighter/node/record"
)

// Chunks is where a device's bytes come from (a share of store.Units).
type Chunks interface {
	// Has tells whether the chunk is believed to be here.
	Has(id chunk.ID) bool
	// Load has those of the chunks that are here read from the disk into memory, and
	// returns when they are.
	Load(refs []chunk.Ref)
	// Cached fills dst with the chunk's bytes from offset on, if they are here.
	Cached(ref chunk.Ref, offset int, dst []byte) bool
	// Read does the same from wherever they are. It calls missed each time that the
	// origins answered and the chunk was not where it was looked for, and goes on.
	Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error
	// Warm brings the chunk's unit here, for nobody who waits.
	Warm(ctx context.Context, ref chunk.Ref) error
	// Received returns the bytes that came for this device, as they came, by the
	// origin that gave them.
	Received() map[string]int64
	// Reach returns how many bytes come in the time that a first byte takes, if that
	// is long; 0: it is not, or nothing is known.
	Reach() int64
	// Stream does as Warm does with a unit of about size bytes, one of many, when it
	// is its turn, and returns when it is on its way: wait, which has to be called,
	// waits for it and tells how many bytes came; nil: nothing has to.
	Stream(ctx context.Context, ref chunk.Ref, size int64) (wait func(context.Context) (int64, error), err error)
}

// faultChunks is how many chunks one fault asks for at a time.
const faultChunks = 16

// Device is the data device of one tree: it answers faults. This is the read
// path; what is below is chunk by chunk.
type Device struct {
	extents   *index.Map
	where     atomic.Pointer[where]
	chunks    Chunks
	readers   [2]prefetch.Sequential // of what is not foreseen, and of what is
	ahead     *Ahead
	wishes    *wishes
	stream    *stream
	around    around
	mend      func(ctx context.Context, cause error) bool // nil: nobody does
	locator   Locator                                     // nil: there is none
	recording atomic.Pointer[record.Recording]            // nil: nobody wants to know what is read
	log       *slog.Logger

	faults atomic.Int64
	bytes  atomic.Int64
	missed atomic.Int64
}

var _ fuse.Reader = (*Device)(nil)

// New makes the device of the tree that extents belongs to; locations may be nil.
// What is worth reading ahead it leaves to ahead.
func New(extents *index.Map, locations *index.Locations, ahead *Ahead, log *slog.Logger) *Device {
	chunks := ahead.share()
	d := &Device{extents: extents, chunks: chunks, ahead: ahead, wishes: &wishes{chunks: chunks}, log: log}
	d.where.Store(newWhere(locations))
	d.stream = newStream(d)
	d.stream.follow(locations)
	return d
}

// Begin has the startup packs fetched that every start needs, as far as they are not
// here, and tells whether there are any. It is called before each start, and does not
// wait.
func (d *Device) Begin() bool { return d.stream.begin() }

// EndStream has no more startup packs fetched, and waits until none are.
func (d *Device) EndStream() { d.stream.end() }

// Close has nothing more read ahead. It is called when no fault comes any more.
func (d *Device) Close() error {
	d.EndStream()
	d.around.work.Wait()
	d.ahead.drop(d.wishes)
	return nil
}

// MendWith has mend called when the extent map cannot be read: if it says that it
// can be now, the fault is answered after all. It is called before the device is
// added to a server, or not at all.
func (d *Device) MendWith(mend func(ctx context.Context, cause error) bool) { d.mend = mend }

// Record has the reads from now on noted; nil ends that.
func (d *Device) Record(r *record.Recording) { d.recording.Store(r) }

// Unread tells whether nothing was read yet.
func (d *Device) Unread() bool { return d.faults.Load() == 0 }

// part is what one extent contributes to a fault.
type part struct {
	extent int64 // its number
	ref    chunk.Ref
	offset int // in the chunk
	dst    []byte
}

// ReadAt answers one fault: it fills dst from offset on, or returns an error.
// missed is how many of the bytes were not on this machine.
func (d *Device) ReadAt(ctx context.Context, dst []byte, offset int64) (missed int64, err error) {
	d.faults.Add(1)
	d.bytes.Add(int64(len(dst)))
	if r := d.recording.Load(); r != nil {
		r.Note(offset, int64(len(dst)))
	}
	c, err := d.cached(dst, offset)
	if err != nil && d.mend != nil && d.mend(ctx, err) {
		c, err = d.cached(dst, offset)
	}
	if err != nil {
		return c.missed, fmt.Errorf("read %d bytes at %d: %w: %w", len(dst), offset, fuse.ErrIndex, err)
	}
	d.stream.read(offset, int64(len(dst)))
	d.readAhead(offset, int64(len(dst)), c.last)
	if len(c.missing) == 0 {
		return 0, nil
	}
	d.missed.Add(c.missed)
	d.readAround(c.missing[0].extent)
	return c.missed, d.fetch(ctx, c.missing)
}

// found is what of a read was on this machine.
type found struct {
	missing []part // the rest
	missed  int64  // its bytes
	last    int64  // the last extent that was read
}

// cached fills dst with what is on this machine.
func (d *Device) cached(dst []byte, offset int64) (f found, err error) {
	err = d.parts(dst, offset, func(p part) {
		d.use(p)
		f.last = p.extent
		if !d.chunks.Cached(p.ref, p.offset, p.dst) {
			f.missing = append(f.missing, p)
			f.missed += int64(len(p.dst))
		}
	})
	return f, err
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
		fn(part{extent: i, ref: chunk.Ref{ID: e.ID, Length: e.Length}, offset: int(from - e.Offset), dst: dst[from-offset : to-offset]})
		at = to
	}
	clear(dst[at-offset:])
	return err
}

// missing returns one of the extents' chunks that are not here, as one of the unit,
// and how many bytes all of those have.
func (d *Device) missing(u chunk.Unit, extents []int64) (ref chunk.Ref, plain int64) {
	for _, i := range extents {
		e, err := d.extents.Extent(i)
		if err != nil || d.chunks.Has(e.ID) {
			continue
		}
		if plain == 0 {
			ref = chunk.Ref{ID: e.ID, Length: e.Length, Unit: u}
		}
		plain += int64(e.Length)
	}
	return ref, plain
}

func (d *Device) fetch(ctx context.Context, missing []part) error {
	if len(missing) == 1 { // as nearly always
		return d.fetchOne(ctx, missing[0])
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(faultChunks)
	for _, p := range missing {
		group.Go(func() error { return d.fetchOne(ctx, p) })
	}
	return group.Wait()
}

// readAhead tells of a read up to the extent last, and asks for the units that its
// reader is likely to want next. It never waits. Where starts are known they say better
// what that is: who reads what they read gets nothing but the packs that are wanted, and
// that from the stream as long as there is one.
func (d *Device) readAhead(offset, length, last int64) {
	foreseen, reader := d.isForeseen(last), &d.readers[0]
	if foreseen {
		reader = &d.readers[1]
	}
	r := reader.Read(offset, length, func(to int64) int64 { return d.fileEnd(offset, to) })
	if r.To <= r.From || foreseen && d.stream.isRunning() {
		return
	}
	i, err := d.extents.Find(r.From)
	asked := chunk.Unit{}
	for ; err == nil && i < d.extents.Extents; i++ {
		var e index.Extent
		if e, err = d.extents.Extent(i); err != nil || e.Offset >= r.To {
			return
		}
		if d.chunks.Has(e.ID) {
			continue
		}
		unit, _ := d.unit(i)
		if unit == asked && !asked.IsZero() || foreseen && !d.stream.wants(unit.Pack) {
			continue
		}
		asked = unit
		if !d.ahead.ask(d.wishes, chunk.Ref{ID: e.ID, Length: e.Length, Unit: unit}) {
			return
		}
	}
}

// fileEnd returns where the file ends in which offset lies, as far as that is
// before to: where the next one begins.
func (d *Device) fileEnd(offset, to int64) int64 {
	i, err := d.extents.Find(offset)
	for ; err == nil && i < d.extents.Extents; i++ {
		var e index.Extent
		if e, err = d.extents.Extent(i); err != nil || e.Offset >= to {
			return to
		}
		if e.First && e.Offset > offset {
			return e.Offset
		}
	}
	return to
}
