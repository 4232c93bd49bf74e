package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Chunks calls fn for each chunk of a tree that is on this machine, in the order
// of its device; for one that several files have, several times. A damaged index is
// fetched once more, and fn called from the start again.
func (t *Trees) Chunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error {
	err := t.useWhole(ctx, tree, func() error { return damaged(t.chunks(ctx, tree, fn)) })
	if err != nil {
		return fmt.Errorf("list the chunks of tree %s: %w", tree.Short(), err)
	}
	return nil
}

func (t *Trees) chunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error {
	extents, file, err := t.openMap(tree)
	if err != nil {
		return err
	}
	defer file.Close()
	hint, locations, err := openLocations(t.locations(tree), tree, extents.Extents)
	if err == nil {
		defer hint.Close()
	}
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		ref := chunk.Ref{ID: e.ID, Length: e.Length}
		if locations != nil {
			ref.Unit, _ = locations.Unit(i) // a hint
		}
		fn(ref)
	}
	return nil
}

// openMap opens a tree's extent map to be read once, in order, without pushing out of
// memory what readers need.
func (t *Trees) openMap(tree chunk.ID) (*index.Map, io.Closer, error) {
	file, err := os.Open(filepath.Join(t.dir(tree), "map"))
	if err != nil {
		return nil, nil, err
	}
	extents, err := index.OpenMap(file, tree, index.NewPages(1))
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return extents, file, nil
}
