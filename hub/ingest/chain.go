package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
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
	if err := s.trees.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.trees.Release(1)
	dir, err := os.MkdirTemp(s.config.Scratch, "chain-")
	if err != nil {
		return nil, fmt.Errorf("make scratch space: %w", err)
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
	err = s.Publish(ctx, nil, made.files, nil, func() error {
		return s.catalog.Publish(ctx, &catalog.Publication{Tree: made.tree, Statement: made.statement})
	})
	return &made.statement, err
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
