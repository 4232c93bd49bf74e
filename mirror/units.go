package mirror

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/store/origin"
	"lighter/wire"
)

// wanted is what a tree needs of one unit.
type wanted struct {
	unit   chunk.Unit // zero: any unit with the chunk
	chunks []chunk.ID
	bytes  int64 // plain
}

// wantedUnits lists the units that hold a tree's chunks.
func wantedUnits(extents *index.Map, locations *index.Locations) (all []*wanted, err error) {
	units := map[chunk.Unit]*wanted{}
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err != nil {
			return nil, err
		}
		unit, err := locations.Unit(i)
		if err != nil {
			return nil, err
		}
		w := units[unit]
		if w == nil || unit.IsZero() {
			w = &wanted{unit: unit}
			units[unit] = w
			all = append(all, w)
		}
		w.chunks = append(w.chunks, e.ID)
		w.bytes += int64(e.Length)
	}
	return all, nil
}

// copyUnits copies the units of a tree, several at a time.
func (m *Mirror) copyUnits(ctx context.Context, extents *index.Map, locations *index.Locations) error {
	all, err := wantedUnits(extents, locations)
	if err != nil {
		return err
	}
	progress := wire.Progress{Step: "mirror", Item: extents.ID().String()}
	for _, w := range all {
		progress.Total += w.bytes
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	var mu sync.Mutex // guards progress, and reporting
	for _, w := range all {
		group.Go(func() error {
			err := m.copyUnit(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			progress.Bytes += w.bytes
			m.report(progress)
			return err
		})
	}
	return group.Wait()
}

// copyUnit copies a unit unless the directory has it.
func (m *Mirror) copyUnit(ctx context.Context, w *wanted) error {
	path := wire.UnitPath(m.client.Domain(), w.unit)
	fetch := func(take func(store.Answer) error) error { return m.hub.FetchUnit(ctx, w.unit, take) }
	if w.unit.IsZero() {
		path = wire.ChunkPath(m.client.Domain(), w.chunks[0])
		fetch = func(take func(store.Answer) error) error { return m.hub.Fetch(ctx, chunk.Ref{ID: w.chunks[0]}, take) }
	}
	if m.files.has(path) {
		m.kept.Add(1)
		return ctx.Err()
	}
	var encoded []byte
	err := origin.Retry(ctx, tries, func() error {
		return fetch(func(a store.Answer) (err error) {
			if encoded, err = io.ReadAll(io.LimitReader(a.Body, pack.MaxStored+1)); err == nil {
				err = w.check(path, encoded)
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

// check verifies all chunks of a unit, and that the wanted chunks are among them. path is the
// unit's path on the hub.
func (w *wanted) check(path string, encoded []byte) error {
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
		return &chunk.InvalidError{What: path, Err: err}
	}
	return nil
}
