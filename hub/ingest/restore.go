package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// Keep receives a chunk, whose ID is the digest of data. It copies data.
type Keep func(id chunk.ID, data []byte) error

// KeepNone drops the chunks.
func KeepNone(chunk.ID, []byte) error { return nil }

// Restore stores known chunks again: those that feed passes to keep. It writes them to new packs,
// and the catalog then names these packs. Afterwards Restore deletes each pack in old that has no
// chunk any more. It returns the restored chunks. If feed fails, nothing is changed.
func (i *Ingester) Restore(
	ctx context.Context, old []chunk.ID, feed func(ctx context.Context, keep Keep) error,
) (restored map[chunk.ID]bool, err error) {
	s, err := newStaging(i.publisher, i.catalog)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// No chunk counts as known, so all are stored again.
	s.numbers = func(context.Context, []chunk.ID) (map[chunk.ID]int64, error) { return nil, nil }
	group, groupCtx := errgroup.WithContext(ctx)
	units := newUnitWriter(groupCtx, group, s, i.encoders)
	group.Go(func() error {
		defer units.close()
		return feed(groupCtx, func(id chunk.ID, data []byte) error {
			position, isNew := s.list(id, uint32(len(data)))
			if !isNew {
				return nil
			}
			return units.add(id, data, position)
		})
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := errors.Join(s.finish(), s.flushed()); err != nil {
		return nil, err
	}
	chunks, _ := s.fresh()
	replaced := make([]string, len(old))
	for n, id := range old {
		replaced[n] = objects.PackKey(id)
	}
	err = i.publisher.Publish(ctx, publish.Objects{Staged: s.packFiles(), Replaced: replaced},
		func(claim catalog.Claim) error { return i.catalog.MoveChunks(ctx, claim, s.packs, chunks, old) })
	restored = map[chunk.ID]bool{}
	for _, c := range chunks {
		restored[c.ID] = true
	}
	return restored, err
}

// RestoreRecord stores the record of a known layer again, from a file that VerifyLayer has written.
func (i *Ingester) RestoreRecord(ctx context.Context, diffID, path string) error {
	return i.publisher.Publish(ctx,
		publish.Objects{Staged: []objects.Staged{{Key: objects.LayerKey(diffID), Path: path}}},
		func(catalog.Claim) error { return nil })
}

// Renew makes the index of a known tree again from the records of its layers. It also makes
// locations that name the current units of the tree's chunks. The tree's startup packs are made
// again afterwards.
func (t *Trees) Renew(ctx context.Context, of catalog.TreeOf) (err error) {
	count, err := t.catalog.Collections(ctx)
	if err != nil {
		return err
	}
	layers, err := t.catalog.Repairs.ChainLayers(ctx, of.Chain)
	if err != nil {
		return err
	}
	dir, err := t.publisher.TempDir("renew")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	records := make([]Record, len(layers))
	for i, diffID := range layers {
		records[i].Open = func() (io.ReadCloser, error) { return t.openRecord(ctx, diffID) }
	}
	made, err := t.make(ctx, dir, records, t.catalog.Units)
	if err != nil {
		return fmt.Errorf("make tree %s again: %w", of.Tree.Short(), err)
	}
	if made.tree.ID != of.Tree {
		return fmt.Errorf("make tree %s again: its layers make tree %s", of.Tree.Short(), made.tree.ID.Short())
	}
	before, err := t.catalog.Starts.Locations(ctx, of.Tree)
	if err != nil {
		return err
	}
	return t.publisher.Publish(ctx,
		publish.Objects{Staged: made.files, Replaced: []string{objects.LocationsKey(before)}},
		func(c catalog.Claim) error { return t.catalog.Repairs.RenewTree(ctx, c, count.Moves, made.tree) })
}
