package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/report"
)

// treeTimeout bounds the making of one tree, for whoever waits for it.
const treeTimeout = 5 * time.Minute

// Tree returns the statement about a chain of some image that is ready, whose
// tree is made if it is not yet. Many who ask at once cause one making, which
// goes on when they are gone, until the hub ends.
func (s *Service) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	layers, err := s.catalog.Layers(ctx, chain)
	if err != nil {
		return nil, err
	}
	if statement, err := s.catalog.Statement(ctx, chain); !errors.Is(err, catalog.ErrNotFound) {
		return statement, err
	}
	result := s.making.DoChan(chain, func() (any, error) {
		ctx, cancel := context.WithTimeout(s.life, treeTimeout)
		defer cancel()
		return s.makeChain(ctx, chain, layers)
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return nil, fmt.Errorf("make the tree of chain %s: %w", chain, r.Err)
		}
		return r.Val.(*index.Statement), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// makeChain makes the tree of a chain from the records of its layers.
func (s *Service) makeChain(ctx context.Context, chain string, layers []string) (statement *index.Statement, err error) {
	if !s.asking.TryAcquire(1) {
		return nil, report.ErrBusy
	}
	defer s.asking.Release(1)
	// One of those that are asked for waits with images for its turn, and not all.
	if err := s.asked.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.asked.Release(1)
	dir, err := s.publisher.TempDir("chain")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	records := make([]*recordSource, len(layers))
	for i, diffID := range layers {
		records[i] = &recordSource{open: func() (io.ReadCloser, error) { return s.openLayer(ctx, diffID) }}
	}
	made, err := s.index(ctx, dir, records, s.knownUnits)
	if err != nil {
		return nil, err
	}
	made.sign(s.config.Keys, chain)
	err = s.publisher.Publish(ctx, publish.Objects{Others: made.files}, func() error {
		return s.catalog.Publish(ctx, &catalog.Publication{Tree: made.tree, Statement: made.statement})
	})
	if err != nil {
		return nil, err
	}
	s.dropSurplus(ctx, made.tree.ID)
	return &made.statement, nil
}

// Trees that were made because somebody asked are kept as long as they are used, within
// these bounds: they can be made again.
const (
	maxDerived      = 4096
	maxDerivedBytes = 8 << 30 // of indexes and locations, as they are stored
)

// dropSurplus deletes the indexes of such trees that were used least recently, beyond
// the bounds, but the one that has just been made.
func (s *Service) dropSurplus(ctx context.Context, made chunk.ID) {
	surplus, err := s.catalog.SurplusDerived(ctx, s.MaxDerived, maxDerivedBytes)
	surplus = slices.DeleteFunc(surplus, func(d catalog.Derived) bool { return d.Tree == made })
	if err == nil && len(surplus) > 0 {
		var keys []string
		for _, d := range surplus {
			keys = append(keys, objects.IndexKey(d.Tree), objects.LocationsKey(d.Locations))
		}
		err = s.publisher.Delete(ctx, keys, func() error { return s.catalog.ForgetDerived(ctx, surplus) })
	}
	if err != nil && ctx.Err() == nil { // the next one deletes more
		s.config.Log.Error("drop trees that were made for whoever asked", "err", err)
	}
}

// knownUnits says where chunks lie that are all known.
func (s *Service) knownUnits(ctx context.Context, ids []chunk.ID) ([]chunk.Unit, error) {
	found, err := s.catalog.Units(ctx, ids)
	if err != nil {
		return nil, err
	}
	units := make([]chunk.Unit, len(ids))
	for i, id := range ids {
		if units[i] = found[id]; units[i].IsZero() {
			return nil, fmt.Errorf("chunk %s is in no pack", id.Short())
		}
	}
	return units, nil
}
