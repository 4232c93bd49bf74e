package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"

	"lighter/durable"
)

// Names in Config.Dir, besides metadata.db and the snapshots' numbers.
const (
	emptyDir  = "empty"
	newPrefix = "new-"
	oldPrefix = "rm-"
)

// Commit commits an active snapshot. It measures the upper directory before the transaction begins,
// because a writable transaction blocks all other writers.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	if err := checkName(name); err != nil {
		return err
	}
	id, active, _, err := s.info(ctx, key)
	if err != nil {
		return fmt.Errorf("commit snapshot %s: %w", key, err)
	}
	usage, err := continuity.DiskUsage(ctx, s.fsPath(id))
	if err != nil {
		return fmt.Errorf("measure snapshot %s: %w", key, err)
	}
	opts = append(slices.Clone(opts), keepWhy(active))
	return s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		committed, err := storage.CommitActive(ctx, key, name, snapshots.Usage(usage), opts...)
		if err != nil {
			return fmt.Errorf("commit snapshot %s: %w", key, err)
		}
		if committed != id {
			return fmt.Errorf("commit snapshot %s: it was replaced meanwhile: %w", key, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
}

// Remove removes a snapshot from the store. The next Cleanup deletes its directory. If the snapshot
// is lazy, Remove drops its chain.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, _, err := storage.Remove(ctx, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", key, err)
	}
	if chain, ok := chainOf(key); ok {
		s.chains.Drop(chain)
	}
	return nil
}

// Cleanup deletes snapshot directories that the store does not know. It moves them aside within a
// transaction, so that no new directory appears meanwhile, and deletes them afterwards. Leftovers
// lists the directories that cannot be moved or deleted. The next Cleanup tries again.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	var aside []string
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		names, err := idMap(ctx)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(s.dir)
		if err != nil {
			return err
		}
		var orphans []string
		for _, e := range entries {
			_, known := names[e.Name()]
			switch {
			case strings.HasPrefix(e.Name(), oldPrefix):
				aside = append(aside, filepath.Join(s.dir, e.Name()))
			case !known && isOurs(e.Name()):
				orphans = append(orphans, e.Name())
			}
		}
		if len(orphans) == 0 {
			return nil
		}
		dir, _, err := s.moveAside(orphans)
		if err == nil {
			aside = append(aside, dir)
		}
		return err
	})
	for _, dir := range aside {
		s.leftovers.Remove(dir)
	}
	if err != nil {
		err = fmt.Errorf("look for abandoned snapshot directories: %w", err)
	}
	s.leftovers.Note(s.dir, err)
	return err
}

// Leftovers lists the paths that Cleanup could not delete, with the causes.
func (s *Snapshotter) Leftovers() []durable.Leftover { return s.leftovers.List() }

// isOurs reports whether an entry of the directory is a snapshot's directory, finished or not.
func isOurs(name string) bool {
	if strings.HasPrefix(name, newPrefix) {
		return true
	}
	return name != "" && strings.Trim(name, "0123456789") == ""
}

// moveAside moves entries of the snapshots' directory into a new directory, aside, which may be
// deleted at any time. It ignores missing entries, because a concurrent call may have moved them.
// stay lists the entries that could not be moved.
func (s *Snapshotter) moveAside(entries []string) (aside string, stay []string, err error) {
	if aside, err = os.MkdirTemp(s.dir, oldPrefix); err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		err := os.Rename(filepath.Join(s.dir, e), filepath.Join(aside, e))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			stay = append(stay, e)
		}
		s.leftovers.Note(filepath.Join(s.dir, e), err)
	}
	return aside, stay, nil
}
