package mirror

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/mirror/files"
	"lighter/store"
	"lighter/store/origin"
	"lighter/wire"
)

// copyUnits copies the units of a tree, several at a time.
func (m *Mirror) copyUnits(ctx context.Context, extents *index.Map, locations *index.Locations) error {
	all, err := files.WantedUnits(extents, locations)
	if err != nil {
		return err
	}
	progress := wire.Progress{Step: "mirror", Item: extents.ID().String()}
	for _, w := range all {
		progress.Total += w.Bytes
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	var mu sync.Mutex // guards progress, and reporting
	for _, w := range all {
		group.Go(func() error {
			err := m.copyUnit(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			progress.Bytes += w.Bytes
			m.report(progress)
			return err
		})
	}
	return group.Wait()
}

// copyUnit copies a unit unless the directory has it.
func (m *Mirror) copyUnit(ctx context.Context, w *files.Wanted) error {
	path := w.Path(m.client.Domain())
	fetch := func(take func(store.Answer) error) error { return m.hub.FetchUnit(ctx, w.Unit, take) }
	if w.Unit.IsZero() {
		fetch = func(take func(store.Answer) error) error { return m.hub.Fetch(ctx, chunk.Ref{ID: w.Chunks[0]}, take) }
	}
	if m.files.Has(path) {
		m.kept.Add(1)
		return ctx.Err()
	}
	var encoded []byte
	err := origin.Retry(ctx, tries, func() error {
		return fetch(func(a store.Answer) (err error) {
			if encoded, err = io.ReadAll(io.LimitReader(a.Body, pack.MaxStored+1)); err == nil {
				err = w.Check(path, encoded)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	m.fetched.Add(1)
	return m.files.Write(path, encoded)
}
