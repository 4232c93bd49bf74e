package ingest

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/encoder"
)

const (
	batchBytes  = 2 << 20 // bytes of a batch; a chunk of the maximum length fits
	batchChunks = 500     // chunks of a batch, which one query of the catalog looks up
	batches     = 2       // batches of a layer: one is filled while the other is looked up
	unitsAhead  = 4       // units of a layer that are being filled, compressed or written
)

// batch is a run of chunks that are not in units yet.
type batch struct {
	buf       []byte // their bytes
	ends      []int  // where each chunk ends in buf
	ids       []chunk.ID
	positions []uint32 // in the staging
}

func (b *batch) fits(n int) bool {
	return len(b.buf)+n <= batchBytes && len(b.ids) < batchChunks
}

func (b *batch) reset() {
	b.buf, b.ends, b.ids, b.positions = b.buf[:0], b.ends[:0], b.ids[:0], b.positions[:0]
}

// unitWriter packs the chunks of one layer into units, in their order, and adds the units to the
// staging. Lookup, compression and writing run concurrently, within a few megabytes of memory.
type unitWriter struct {
	staging  *staging
	encoders *encoder.Pool
	group    *errgroup.Group
	ctx      context.Context // ends when any part of the layer fails
	current  *batch
	empty    chan *batch
	full     chan *batch
	written  chan *unitJob // units to write, in order
	jobs     chan *unitJob // unused unitJobs
}

// unitJob is one unit from its first chunk until it is written.
type unitJob struct {
	builder   pack.UnitBuilder
	plain     int64
	positions []uint32
	encoded   []byte
	done      chan struct{} // receives an element when encoded is set
}

// newUnitWriter starts a writer. Its goroutines belong to group and end with ctx.
func newUnitWriter(ctx context.Context, group *errgroup.Group, s *staging, e *encoder.Pool) *unitWriter {
	w := &unitWriter{staging: s, encoders: e, group: group, ctx: ctx,
		empty: make(chan *batch, batches), full: make(chan *batch, batches),
		written: make(chan *unitJob, unitsAhead), jobs: make(chan *unitJob, unitsAhead)}
	for range batches {
		w.empty <- &batch{}
	}
	for range unitsAhead {
		w.jobs <- &unitJob{done: make(chan struct{}, 1)}
	}
	group.Go(w.fill)
	group.Go(w.write)
	return w
}

var errLayerFailed = errors.New("another part of the layer failed")

// add adds a chunk that is new in the staging. It copies data.
func (w *unitWriter) add(id chunk.ID, data []byte, position uint32) error {
	if w.current != nil && !w.current.fits(len(data)) {
		w.full <- w.current // never blocks: the channel holds all batches
		w.current = nil
	}
	if w.current == nil {
		select {
		case w.current = <-w.empty:
		case <-w.ctx.Done():
			return errLayerFailed
		}
	}
	b := w.current
	b.buf = append(b.buf, data...)
	b.ends = append(b.ends, len(b.buf))
	b.ids = append(b.ids, id)
	b.positions = append(b.positions, position)
	return nil
}

// close is called after the last chunk. The group's Wait returns when all units are written.
func (w *unitWriter) close() {
	if w.current != nil {
		w.full <- w.current
	}
	close(w.full)
}

// fill drops the chunks that the hub already has, and fills units with the new ones.
func (w *unitWriter) fill() error {
	defer close(w.written)
	var job *unitJob
	for {
		var b *batch
		select {
		case b = <-w.full:
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
		if b == nil {
			break
		}
		known, err := w.staging.numbers(w.ctx, b.ids)
		if err != nil {
			return err
		}
		w.staging.setKnown(b.positions, known)
		if job, err = w.fillFrom(b, known, job); err != nil {
			return err
		}
		b.reset()
		w.empty <- b
	}
	if job != nil && job.builder.Len() > 0 {
		w.compress(job)
	}
	return nil
}

// fillFrom continues job, which may be nil, and returns the job to continue with.
func (w *unitWriter) fillFrom(b *batch, known map[chunk.ID]int64, job *unitJob) (*unitJob, error) {
	start := 0
	for i, id := range b.ids {
		data := b.buf[start:b.ends[i]]
		start = b.ends[i]
		if known[id] != 0 {
			continue
		}
		if job == nil {
			select {
			case job = <-w.jobs:
			case <-w.ctx.Done():
				return nil, w.ctx.Err()
			}
		}
		job.builder.Add(id, data)
		job.plain += int64(len(data))
		job.positions = append(job.positions, b.positions[i])
		if job.builder.Full() {
			w.compress(job)
			job = nil
		}
	}
	return job, nil
}

// compress begins to compress a unit and queues it for writing.
func (w *unitWriter) compress(job *unitJob) {
	w.written <- job // never blocks: the channel holds all jobs
	w.group.Go(func() error {
		job.encoded = w.encoders.Encode(&job.builder, job.encoded[:0])
		job.done <- struct{}{}
		return nil
	})
}

// write writes the units in their order.
func (w *unitWriter) write() error {
	for job := range w.written {
		<-job.done
		if err := w.staging.addUnit(job.encoded, job.plain, job.positions); err != nil {
			return err
		}
		job.builder.Reset()
		job.plain, job.positions = 0, job.positions[:0]
		w.jobs <- job
	}
	return nil
}
