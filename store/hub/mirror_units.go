package hub

import (
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/wire"
)

// wanted is what a tree needs of one unit.
type wanted struct {
	unit   chunk.Unit // zero: of any unit
	chunks []chunk.ID
	bytes  int64 // plain
}

// copyUnits copies the units of a tree, several at a time.
func (m *Mirror) copyUnits(ctx context.Context, extents *index.Map, locations *index.Locations) error {
	var all []*wanted
	units := map[chunk.Unit]*wanted{}
	progress := wire.Progress{Step: "mirror", Item: extents.ID().String()}
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err != nil {
			return err
		}
		unit, err := locations.Unit(i)
		if err != nil {
			return err
		}
		w := units[unit]
		if w == nil || unit.IsZero() {
			w = &wanted{unit: unit}
			units[unit] = w
			all = append(all, w)
		}
		w.chunks = append(w.chunks, e.ID)
		w.bytes += int64(e.Length)
		progress.Total += int64(e.Length)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(mirrorWorkers)
	done := make(chan int64)
	go func() {
		defer close(done)
		for _, w := range all {
			group.Go(func() error {
				err := m.copyUnit(ctx, w)
				done <- w.bytes
				return err
			})
		}
		_ = group.Wait() // its error is returned below
	}()
	for n := range done {
		progress.Bytes += n
		m.tell(progress)
	}
	return group.Wait()
}

// copyUnit copies a unit if it is not there.
func (m *Mirror) copyUnit(ctx context.Context, w *wanted) error {
	path := wire.UnitPath(m.client.scope, w.unit)
	get := func(take func(store.Answer) error) error { return m.origins.FetchUnit(ctx, w.unit, take) }
	if w.unit.IsZero() {
		path = wire.ChunkPath(m.client.scope, w.chunks[0])
		get = func(take func(store.Answer) error) error {
			return m.origins.Fetch(ctx, chunk.Ref{ID: w.chunks[0]}, take)
		}
	}
	if m.files.has(path) {
		m.kept.Add(1)
		return ctx.Err()
	}
	var encoded []byte
	err := m.patiently(ctx, func() error {
		return get(func(a store.Answer) (err error) {
			if encoded, err = io.ReadAll(io.LimitReader(a.Body, pack.MaxStored+1)); err == nil {
				err = w.check(encoded)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	m.fetched.Add(1)
	return m.files.write(path, encoded)
}

// check verifies all chunks of a unit, and that those are there that are wanted.
func (w *wanted) check(encoded []byte) error {
	unit, err := pack.DecodeUnit(encoded)
	if err == nil {
		for i := range unit.Len() {
			if _, wrong := unit.Chunk(i); wrong != nil {
				err = wrong
			}
		}
		for _, id := range w.chunks {
			if _, missing := unit.Lookup(id); missing != nil {
				err = missing
			}
		}
	}
	if err != nil {
		return &chunk.InvalidError{What: "unit " + w.unit.String(), Err: err}
	}
	return nil
}
