package trees

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
)

// Chunks calls fn for each extent of a tree, with its chunk, in the order of the device. A chunk at
// several places of the device is passed to fn several times. If the index is damaged, Chunks
// fetches it again, and begins again with the first extent.
func (s *Store) Chunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error {
	return s.listChunks(ctx, tree, false, fn)
}

// StartupChunks does what Chunks does, for the chunks that are in startup packs. A tree whose
// locations have not arrived yet has none.
func (s *Store) StartupChunks(ctx context.Context, tree chunk.ID, fn func(chunk.Ref)) error {
	return s.listChunks(ctx, tree, true, fn)
}

func (s *Store) listChunks(ctx context.Context, tree chunk.ID, startup bool, fn func(chunk.Ref)) error {
	err := s.WithRepair(ctx, tree, func() error { return damaged(s.chunks(ctx, tree, startup, fn)) })
	if err != nil {
		return fmt.Errorf("list the chunks of tree %s: %w", tree.Short(), err)
	}
	return nil
}

// chunks calls fn for each extent of a tree, or only for those in startup packs.
func (s *Store) chunks(ctx context.Context, tree chunk.ID, startup bool, fn func(chunk.Ref)) error {
	extents, file, err := s.openMap(tree)
	if err != nil {
		return err
	}
	defer file.Close()
	hint, locations, err := openLocations(s.locations(tree), tree, extents.Extents)
	if err == nil {
		defer hint.Close()
	}
	packs := map[chunk.ID]bool{} // startup packs
	if locations != nil {
		for _, p := range locations.Startups() {
			packs[p.Pack] = true
		}
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
			ref.Unit, _ = locations.Unit(i) // an error does not matter: the chunk can be found by its ID
		}
		if !startup || packs[ref.Unit.Pack] {
			fn(ref)
		}
	}
	return nil
}

// openMap opens a tree's extent map for one caller, and caches only the page that was read last. It
// does not use the shared cache of pages, which the devices need.
func (s *Store) openMap(tree chunk.ID) (*index.Map, io.Closer, error) {
	file, err := os.Open(s.mapFile(tree))
	if err != nil {
		return nil, nil, err
	}
	extents, err := index.OpenMap(file, tree, index.NewPages(1))
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return extents, file, nil
}

// Content is how much of a tree's data is cached: distinct chunks and their plain bytes. Small
// files are in the tree's index, and not counted.
type Content struct {
	Chunks       int64 `json:"chunks"`
	Bytes        int64 `json:"bytes"`
	CachedChunks int64 `json:"cachedChunks"`
	CachedBytes  int64 `json:"cachedBytes"`
}

// Content counts the chunks of a tree, and those for which isCached returns true. It reads the
// whole extent map.
func (s *Store) Content(ctx context.Context, tree chunk.ID, isCached func(chunk.ID) bool) (c Content, err error) {
	counted := map[uint64]struct{}{} // 8 bytes of an ID are enough to tell chunks apart
	err = s.Chunks(ctx, tree, func(ref chunk.Ref) {
		key := binary.BigEndian.Uint64(ref.ID[:])
		if _, duplicate := counted[key]; duplicate {
			return
		}
		counted[key] = struct{}{}
		c.Chunks++
		c.Bytes += int64(ref.Length)
		if isCached(ref.ID) {
			c.CachedChunks++
			c.CachedBytes += int64(ref.Length)
		}
	})
	return c, err
}

// Files returns a trace as a recording: the ranges of files that the traced start has read.
func (s *Store) Files(ctx context.Context, of trace.Trace) (trace.Recording, error) {
	extents, file, err := s.openMap(of.Tree)
	if err != nil {
		return trace.Recording{}, err
	}
	defer file.Close()
	metadata, err := os.Open(s.Metadata(of.Tree))
	if err != nil {
		return trace.Recording{}, err
	}
	defer metadata.Close()
	image, err := erofs.Open(metadata, extents.MetadataSize)
	if err != nil {
		return trace.Recording{}, err
	}
	return of.Recording(ctx, image, extents, trace.MaxText)
}
