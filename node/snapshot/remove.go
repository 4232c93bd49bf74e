package snapshot

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
)

// What lies in Config.Dir beside metadata.db and the directories with numbers.
const (
	emptyDir  = "empty"
	newPrefix = "new-"
	oldPrefix = "rm-"
)

// Commit makes a committed snapshot of an active one. The upper directory is
// measured before the transaction, which others wait for.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	if err := checkName(name); err != nil {
		return err
	}
	var id string
	var active snapshots.Info
	err := s.store.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		id, active, _, err = storage.GetInfo(ctx, key)
		return err
	})
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

// Remove takes a snapshot out of the store. Its directory goes with the next
// Cleanup, a chain that nothing else refers to at once.
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

// Cleanup deletes the directories that the store does not know. They are moved
// aside while a transaction keeps new ones from appearing, and deleted after.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	var aside string
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		orphans, err := s.orphans(ctx)
		if err != nil || len(orphans) == 0 {
			return err
		}
		aside, err = s.moveAside(orphans)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for abandoned snapshot directories: %w", err)
	}
	if aside == "" {
		return nil
	}
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("delete abandoned snapshot directories: %w", err)
	}
	return nil
}

// orphans lists the entries of the directory that are this package's and that
// the store does not know. The context carries a writable transaction: what is
// on its way in now is not in the directory yet, or not any more.
func (s *Snapshotter) orphans(ctx context.Context) ([]string, error) {
	names, err := idMap(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var orphans []string
	for _, e := range entries {
		if _, known := names[e.Name()]; !known && isOurs(e.Name()) {
			orphans = append(orphans, e.Name())
		}
	}
	return orphans, nil
}

func isOurs(name string) bool {
	if strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix) {
		return true
	}
	return name != "" && strings.Trim(name, "0123456789") == ""
}

// moveAside moves entries of the directory into a new one, whose name says that
// it may be deleted at any time, and returns its path. An entry that is gone is
// no loss: two calls may have had the same idea.
func (s *Snapshotter) moveAside(entries []string) (string, error) {
	aside, err := os.MkdirTemp(s.dir, oldPrefix)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		err := os.Rename(filepath.Join(s.dir, e), filepath.Join(aside, e))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}
