package mount

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"lighter/format/chunk"
)

// Scrub hashes the metadata images of the trees that are in use, and the local devices,
// once more, from the disk; at most rate bytes a second, or as fast as it goes if rate
// is 0. The kernel reads them unverified, and one that is damaged under its mount cannot
// be taken away from those who use it: it is named in the log and by Lost. A damaged
// local device is removed, and who mounts its tree from then on reads the daemon's.
func (t *Trees) Scrub(ctx context.Context, rate int64) (damaged int, err error) {
	t.mu.Lock()
	used, local := maps.Clone(t.served), slices.Collect(maps.Keys(t.locals.bytes))
	t.mu.Unlock()
	for _, tree := range local {
		found, err := t.scrubLocal(ctx, tree, rate)
		if ctx.Err() != nil {
			return damaged, context.Cause(ctx)
		}
		if err != nil {
			t.log.Warn("a local device was not verified", "tree", tree.Short(), "cause", err)
		}
		damaged += found
	}
	for tree, m := range used {
		err := verifyMetadata(ctx, t.metadata(tree), m.header, rate)
		if ctx.Err() != nil {
			return damaged, context.Cause(ctx)
		}
		if isDamage(err) && t.found(tree, m, err) {
			damaged++
			t.log.Error("a metadata image is damaged on the disk under its mount", "tree", tree, "cause", err)
		}
	}
	return damaged, nil
}

// found remembers that a tree is damaged, unless it went, or was fetched anew,
// meanwhile.
func (t *Trees) found(tree chunk.ID, m *served, cause error) bool {
	defer t.locks.lock(tree)()
	if t.get(tree) != m || errors.Is(cause, os.ErrNotExist) {
		return false
	}
	t.lose(tree, fmt.Errorf("its containers may see wrong names and attributes, remove them before others are started: %w", cause))
	return true
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// scrubLocal verifies a local device, and removes it if it is damaged: then it returns
// 1.
func (t *Trees) scrubLocal(ctx context.Context, tree chunk.ID, rate int64) (damaged int, err error) {
	extents, file, err := t.openMap(tree)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	cause := verifyLocal(ctx, t.localDevice(tree), extents, rate)
	if ctx.Err() != nil || !isDamage(cause) {
		return 0, cause
	}
	defer t.locks.lock(tree)()
	if _, ok := t.HasLocal(tree); !ok {
		return 0, nil // it went meanwhile
	}
	t.log.Error("a local device is damaged on the disk, and removed", "tree", tree, "cause", cause)
	if m := t.get(tree); t.isLocal(m) {
		t.lose(tree, fmt.Errorf("its containers may read wrong bytes, remove those that were started before others are: %w", cause))
	}
	_, err = t.dropLocal(tree)
	return 1, err
}
