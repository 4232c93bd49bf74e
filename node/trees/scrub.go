package trees

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/time/rate"

	"lighter/format/chunk"
)

// Scrub verifies the metadata images of the served trees, and the local devices, from the disk,
// because the kernel reads both unverified. It reads at most bytesPerSecond, or as fast as possible
// if that is 0. A damaged metadata image stays mounted, because containers use it: it is logged,
// and Lost lists it. A damaged local device is removed; later mounts of its tree read the served
// device.
func (s *Store) Scrub(ctx context.Context, bytesPerSecond int64) (damaged int, err error) {
	limit := rate.Inf
	if bytesPerSecond > 0 {
		limit = rate.Limit(bytesPerSecond)
	}
	for _, tree := range s.allLocals() {
		found, err := s.scrubLocal(ctx, tree, limit)
		if ctx.Err() != nil {
			return damaged, context.Cause(ctx)
		}
		if err != nil {
			s.log.Warn("cannot verify a local device", "tree", tree.Short(), "err", err)
		}
		if found {
			damaged++
		}
	}
	for tree, o := range s.allServed() {
		err := verifyMetadata(ctx, s.Metadata(tree), o.Header, limit)
		if ctx.Err() != nil {
			return damaged, context.Cause(ctx)
		}
		if isDamage(err) && s.loseServed(tree, o, err) {
			damaged++
			s.log.Error("a metadata image is damaged on the disk under its mount", "tree", tree, "err", err)
		}
	}
	return damaged, nil
}

// loseServed adds a damaged tree to those that Lost returns, unless it was removed or fetched
// again meanwhile.
func (s *Store) loseServed(tree chunk.ID, o *OpenTree, cause error) bool {
	defer s.Lock(tree)()
	if s.Served(tree) != o || errors.Is(cause, os.ErrNotExist) {
		return false
	}
	s.setLost(tree, fmt.Errorf("its containers may see wrong names and attributes: "+
		"remove these containers before you start others: %w", cause))
	return true
}

// scrubLocal verifies a local device, and removes it if it is damaged.
func (s *Store) scrubLocal(ctx context.Context, tree chunk.ID, limit rate.Limit) (damaged bool, err error) {
	extents, file, err := s.openMap(tree)
	if err != nil {
		return false, err
	}
	defer file.Close()
	cause := verifyLocal(ctx, s.LocalDevice(tree), extents, limit)
	if ctx.Err() != nil || !isDamage(cause) {
		return false, cause
	}
	defer s.Lock(tree)()
	if _, ok := s.HasLocal(tree); !ok {
		return false, nil // removed meanwhile
	}
	s.log.Error("removing a local device that is damaged on the disk", "tree", tree, "err", cause)
	if s.isMounted(tree) {
		s.setLost(tree, fmt.Errorf("its containers may read wrong bytes: "+
			"remove these containers before you start others: %w", cause))
	}
	_, err = s.DiscardLocal(tree)
	return true, err
}
