package mount

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"lighter/format/chunk"
)

// Scrub hashes the metadata images of the trees that are in use once more, from the
// disk; at most rate bytes a second, or as fast as it goes if rate is 0. The kernel
// reads them unverified, and one that is damaged under its mount cannot be taken
// away from those who use it: it is named in the log and by Lost.
func (t *Trees) Scrub(ctx context.Context, rate int64) (damaged int, err error) {
	t.mu.Lock()
	used := maps.Clone(t.served)
	t.mu.Unlock()
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
	defer t.lock(tree)()
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
