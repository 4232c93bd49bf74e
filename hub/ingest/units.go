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
	batchBytes  = 2 << 20 // holds a longest chunk
	batchChunks = 500     // one query of the catalog
	batches     = 2       // one is filled while the other is stored
	unitsAhead  = 4       // units of a layer that are filled, compressed or written
)

// batch is a run of chunks on their way into units.
type batch struct {
	buf    []byte // their bytes, one behind the other
	ends   []int  // of each chunk in buf
	ids    []chunk.ID
	places []uint32 // as claimed
}

func (b *batch) fits(n int) bool {
	return len(b.buf)+n <= batchBytes && len(b.ids) < batchChunks
}

func (b *batch) reset() {
	b.buf, b.ends, b.ids, b.places = b.buf[:0], b.ends[:0], b.ids[:0], b.places[:0]
}

// unitWriter brings the chunks of one layer into units, in their order, and the
// units into the staging. Looking chunks up, filling units, compressing and
// writing them happen beside each other; all of it holds a few megabytes.
type unitWriter struct {
	staging  *staging
	encoders *encoder.Pool
	group    *errgroup.Group
	ctx      context.Context // ends when a part of the layer fails
	now      *batch
	empty    chan *batch
	full     chan *batch
	written  chan *unitJob // in order
	jobs     chan *unitJob // free ones
}

// unitJob is one unit from its first chunk until it is written.
type unitJob struct {
	builder pack.UnitBuilder
	plain   int64
	places  []uint32
	encoded []byte
	done    chan struct{} // receives once encoded is there
}

// newUnitWriter starts a writer whose goroutines belong to group and end with
// its context.
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

// add takes a chunk that was claimed and is news. It copies data.
func (w *unitWriter) add(id chunk.ID, data []byte, place uint32) error {
	if w.now != nil && !w.now.fits(len(data)) {
		w.full <- w.now // never waits: there is room for all batches
		w.now = nil
	}
	if w.now == nil {
		select {
		case w.now = <-w.empty:
		case <-w.ctx.Done():
			return errLayerFailed
		}
	}
	b := w.now
	b.buf = append(b.buf, data...)
	b.ends = append(b.ends, len(b.buf))
	b.ids = append(b.ids, id)
	b.places = append(b.places, place)
	return nil
}

// close says that no chunk follows. The group's Wait says how it went.
func (w *unitWriter) close() {
	if w.now != nil {
		w.full <- w.now
	}
	close(w.full)
}

// fill drops the chunks that the hub has and fills units with the others.
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
		known, err := w.staging.catalog.Numbers(w.ctx, b.ids)
		if err != nil {
			return err
		}
		w.staging.setKnown(b.places, known)
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

// fillFrom goes on with job, which may be nil, and returns the one to go on
// with.
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
		job.places = append(job.places, b.places[i])
		if job.builder.Full() {
			w.compress(job)
			job = nil
		}
	}
	return job, nil
}

// compress starts to compress a unit and puts it in line to be written.
func (w *unitWriter) compress(job *unitJob) {
	w.written <- job // never waits: there is room for all jobs
	w.group.Go(func() error {
		job.encoded = w.encoders.Encode(&job.builder, job.encoded[:0])
		job.done <- struct{}{}
		return nil
	})
}

// write takes the units in their order.
func (w *unitWriter) write() error {
	for job := range w.written {
		<-job.done // comes: compressing only computes
		if err := w.staging.addUnit(job.encoded, job.plain, job.places); err != nil {
			return err
		}
		job.builder.Reset()
		job.plain, job.places = 0, job.places[:0]
		w.jobs <- job
	}
	return nil
}
