// Package device answers page faults: it maps reads of a tree's device to chunks, and gets the
// chunks from the cache or from an origin (package store). A Device answers a read with all
// requested bytes, exactly as the tree's ID determines them, or with an error.
//
// A read takes two steps: it finds the extents of the range, and then reads their chunks.
// Prefetching and recording, which only learn from reads, are Observers.
package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/fuse"
)

// Chunks reads the contents of chunks. It is safe for concurrent use.
type Chunks interface {
	// Cached fills dst with the chunk's bytes from offset on, and returns true, if the chunk is
	// cached.
	Cached(ref chunk.Ref, offset int, dst []byte) bool
	// Read fills dst with the chunk's bytes from offset on, from an origin. Each time that the
	// origins answer that they do not have the chunk in ref.Unit, Read calls missed and tries
	// again.
	Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error
}

// maxConcurrent bounds the chunks that one read requests at a time.
const maxConcurrent = 16

// Device is the data device of one tree. It is safe for concurrent use.
type Device struct {
	extents   *index.Map
	chunks    Chunks
	locations atomic.Pointer[locations]
	repair    func(ctx context.Context, cause error) bool // see RepairWith; nil: there is no repair
	locate    func() <-chan struct{}                      // see LocateWith; nil: newer locations cannot be fetched
	log       *slog.Logger

	mu        sync.Mutex // guards changes of observers
	observers atomic.Pointer[[]Observer]

	reads  atomic.Int64
	bytes  atomic.Int64
	missed atomic.Int64
}

var _ fuse.Reader = (*Device)(nil)

// New returns the device of the tree that extents belongs to. locations may be nil.
func New(extents *index.Map, locations *index.Locations, chunks Chunks, log *slog.Logger) *Device {
	d := &Device{extents: extents, chunks: chunks, log: log}
	d.locations.Store(newLocations(locations))
	d.observers.Store(&[]Observer{})
	return d
}

// RepairWith sets the function that a read calls if the extent map cannot be read. If repair
// returns true, the read tries once more. RepairWith is called before the device is added to a
// server, or never.
func (d *Device) RepairWith(repair func(ctx context.Context, cause error) bool) { d.repair = repair }

// Extents returns the tree's extent map.
func (d *Device) Extents() *index.Map { return d.extents }

// Reads returns the number of reads so far.
func (d *Device) Reads() int64 { return d.reads.Load() }

// Stats are a device's figures since it was made.
type Stats struct {
	Faults int64 `json:"faults"`      // number of reads
	Bytes  int64 `json:"bytes"`       // number of bytes that reads requested
	Missed int64 `json:"missedBytes"` // number of requested bytes that were not cached
}

// Stats returns the device's figures.
func (d *Device) Stats() Stats {
	return Stats{Faults: d.reads.Load(), Bytes: d.bytes.Load(), Missed: d.missed.Load()}
}

// part is the part of a read that is in one extent.
type part struct {
	extent int64 // its number
	ref    chunk.Ref
	offset int // offset in the chunk
	dst    []byte
}

// ReadAt fills dst with the bytes from offset on, or returns an error. missed is the number of
// these bytes that were not cached.
func (d *Device) ReadAt(ctx context.Context, dst []byte, offset int64) (missed int64, err error) {
	d.reads.Add(1)
	d.bytes.Add(int64(len(dst)))
	r, missing, err := d.readCached(dst, offset)
	if err != nil && d.repair != nil && d.repair(ctx, err) {
		r, missing, err = d.readCached(dst, offset)
	}
	if err != nil {
		return 0, fmt.Errorf("read %d bytes at %d: %w: %w", len(dst), offset, fuse.ErrIndex, err)
	}
	for _, o := range *d.observers.Load() {
		o.Observe(r)
	}
	if len(missing) == 0 {
		return 0, nil
	}
	for _, p := range missing {
		missed += int64(len(p.dst))
	}
	d.missed.Add(missed)
	if err = d.fetch(ctx, missing); errors.Is(err, chunk.ErrNotFound) {
		err = fmt.Errorf("%w: the image was removed where it came from: a hub deletes its chunks then if no node "+
			"reports them any more, and a registry its layers; pull the image again", err)
	}
	return missed, err
}

// readCached fills dst as far as the chunks are cached, and returns the parts that are missing.
func (d *Device) readCached(dst []byte, offset int64) (r Read, missing []part, err error) {
	r = Read{Offset: offset, Length: int64(len(dst)), Missing: -1}
	err = d.split(dst, offset, func(p part) {
		if r.End == 0 {
			r.First = p.extent
		}
		r.End = p.extent + 1
		if !d.chunks.Cached(p.ref, p.offset, p.dst) {
			missing = append(missing, p)
		}
	})
	if len(missing) > 0 {
		r.Missing = missing[0].extent
	}
	return r, missing, err
}

// split calls fn for each extent in the range, and zeroes the bytes that no extent covers.
func (d *Device) split(dst []byte, offset int64, fn func(part)) error {
	at, end := offset, offset+int64(len(dst))
	i, err := d.extents.Find(offset)
	for ; err == nil && i < d.extents.Extents; i++ {
		var e index.Extent
		if e, err = d.extents.Extent(i); err != nil || e.Offset >= end {
			break
		}
		from, to := max(e.Offset, offset), min(e.End(), end)
		clear(dst[at-offset : from-offset])
		fn(part{extent: i, ref: chunk.Ref{ID: e.ID, Length: e.Length}, offset: int(from - e.Offset),
			dst: dst[from-offset : to-offset]})
		at = to
	}
	clear(dst[at-offset:])
	return err
}

// fetch fills parts whose chunks are not cached.
func (d *Device) fetch(ctx context.Context, missing []part) error {
	if len(missing) == 1 { // the common case
		return d.fetchOne(ctx, missing[0])
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrent)
	for _, p := range missing {
		group.Go(func() error { return d.fetchOne(ctx, p) })
	}
	return group.Wait()
}
