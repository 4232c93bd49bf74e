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

// treeTimeout bounds the making of a requested tree.
const treeTimeout = 5 * time.Minute

// Tree returns the statement about a chain of a ready image. If the chain has no tree yet, it is
// made. Concurrent requests for one chain share this work. It goes on if the requests end early.
// The error is report.ErrBusy if too many trees are requested.
func (t *Trees) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	if _, err := t.catalog.Layers(ctx, chain); err != nil {
		return nil, err
	}
	if statement, err := t.catalog.Statement(ctx, chain); !errors.Is(err, catalog.ErrNotFound) {
		return statement, err
	}
	result := t.flights.DoChan(chain, func() (any, error) {
		ctx, cancel := context.WithTimeout(t.life, treeTimeout)
		defer cancel()
		return t.makeChain(ctx, chain)
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

// makeChain makes and publishes the tree of a chain.
func (t *Trees) makeChain(ctx context.Context, chain string) (statement *index.Statement, err error) {
	if !t.waiting.TryAcquire(1) {
		return nil, report.ErrBusy
	}
	defer t.waiting.Release(1)
	// Only one requested tree waits for merging, so that images get their turn.
	if err := t.requested.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer t.requested.Release(1)
	before, err := t.catalog.Collections(ctx)
	if err != nil {
		return nil, err
	}
	layers, err := t.catalog.Layers(ctx, chain)
	if err != nil {
		return nil, err
	}
	dir, err := t.publisher.TempDir("chain")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	records := make([]Record, len(layers))
	for i, diffID := range layers {
		records[i].Open = func() (io.ReadCloser, error) { return t.openRecord(ctx, diffID) }
	}
	made, err := t.make(ctx, dir, records, t.catalog.Units)
	if err != nil {
		return nil, err
	}
	made.sign(t.keys, chain)
	err = t.publisher.Publish(ctx, publish.Objects{Staged: made.files}, func(claim catalog.Claim) error {
		return t.catalog.Publish(ctx, &catalog.Publication{Claim: claim, Tree: made.tree, Statement: made.statement,
			Collections: before, Located: made.packs})
	})
	if err != nil {
		return nil, err
	}
	t.deleteSurplus(ctx, made.tree.ID)
	return &made.statement, nil
}

// Requested trees that nobody holds are kept within these bounds, the most recently used first.
// They can be made again.
const (
	maxDerived      = 4096
	maxDerivedBytes = 8 << 30 // of indexes and locations, compressed
)

// deleteSurplus deletes requested trees beyond the bounds, except the one that was just made.
func (t *Trees) deleteSurplus(ctx context.Context, made chunk.ID) {
	surplus, err := t.catalog.SurplusDerived(ctx, t.MaxDerived, maxDerivedBytes)
	surplus = slices.DeleteFunc(surplus, func(d catalog.Derived) bool { return d.Tree == made })
	if err == nil && len(surplus) > 0 {
		var keys []string
		for _, d := range surplus {
			keys = append(keys, objects.IndexKey(d.Tree), objects.LocationsKey(d.Locations))
		}
		err = t.publisher.Delete(ctx, keys, func(claim catalog.Claim) error {
			return t.catalog.ForgetDerived(ctx, claim, surplus)
		})
	}
	if err != nil && ctx.Err() == nil { // the next requested tree tries again
		t.log.Error("cannot delete surplus trees", "err", err)
	}
}
