package trees

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/flight"
	"lighter/node/fuse"
	"lighter/node/prefetch"
)

// Store has the trees on this machine. It is safe for concurrent use.
//
// Several methods need a tree's lock (Lock, LockContext, TryLock), and say so. The lock is held to
// mount, unmount, publish or remove a tree, and never while something is fetched.
type Store struct {
	paths
	locks   // one for each tree
	locals  // the local devices
	table   // the open trees
	fetcher // of indexes and locations

	server     Server
	prefetcher *prefetch.Prefetcher
	log        *slog.Logger
	pages      *index.Pages // of all extent maps
	refetches  flight.Group[chunk.ID]
	locator    *locator
	leftovers  durable.Leftovers
}

// Server serves devices (fuse.Server).
type Server interface {
	// Add adds a device of size bytes, and returns its path.
	Add(tree chunk.ID, size int64, device fuse.Reader) (path string, err error)
	// Remove undoes Add. No read of the device runs when it returns nil.
	Remove(tree chunk.ID) error
}

// Prefixes of the names of directories in trees/.
const (
	newPrefix = "new-" // of indexes that are being fetched
	oldPrefix = "rm-"  // of indexes that are being removed
)

// Prepare makes the directory of the trees below root.
func Prepare(root string) error {
	if err := os.Mkdir(Dir(root), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("prepare the node's root: %w", err)
	}
	return nil
}

// Open returns the store below root, which Prepare has prepared. root is absolute and has no
// symbolic links. server serves the trees' devices.
func Open(root string, source Source, server Server, prefetcher *prefetch.Prefetcher, log *slog.Logger) *Store {
	return &Store{
		paths: paths{root}, locks: newLocks(), locals: newLocals(), table: newTable(),
		fetcher: fetcher{source, log}, server: server, prefetcher: prefetcher, log: log,
		pages: index.NewPages(cachedPages), locator: newLocator(), leftovers: durable.Leftovers{Log: log},
	}
}

// removeUnfinished removes indexes that a previous daemon was adding or removing when it ended.
func (s *Store) removeUnfinished() error {
	entries, err := os.ReadDir(Dir(s.root))
	if err != nil {
		return fmt.Errorf("list the trees: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), newPrefix) || strings.HasPrefix(entry.Name(), oldPrefix) {
			s.leftovers.Remove(filepath.Join(Dir(s.root), entry.Name()))
		}
	}
	return nil
}

// Leftovers lists files that could not be removed.
func (s *Store) Leftovers() []durable.Leftover { return s.leftovers.List() }

// Has reports whether the tree's index is on this machine.
func (s *Store) Has(tree chunk.ID) bool {
	_, err := os.Stat(s.dir(tree))
	return err == nil
}

// Size returns how many bytes and inodes Discard would free on the disk: those of the index and of
// the local device.
func (s *Store) Size(tree chunk.ID) (bytes, inodes int64) {
	_ = filepath.WalkDir(s.dir(tree), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if entry.IsDir() && slices.Contains([]string{localDir, localNew, localOld}, entry.Name()) {
			return fs.SkipDir // the local device is sparse; its size on the disk is added below
		}
		if info, err := entry.Info(); err == nil {
			inodes++
			if info.Mode().IsRegular() {
				bytes += (info.Size() + 4095) / 4096 * 4096
			}
		}
		return nil
	})
	if local, ok := s.HasLocal(tree); ok {
		bytes += local
		inodes += 2 // the directory and the device; the metadata image is counted above
	}
	return bytes, inodes
}

// List returns the trees on this machine.
func (s *Store) List() ([]chunk.ID, error) {
	entries, err := os.ReadDir(Dir(s.root))
	if err != nil {
		return nil, fmt.Errorf("list the trees: %w", err)
	}
	var trees []chunk.ID
	for _, entry := range entries {
		if id, err := chunk.ParseID(entry.Name()); err == nil {
			trees = append(trees, id)
		}
	}
	return trees, nil
}

// Discard removes a tree. The caller holds the tree's lock, and has called Unserve.
func (s *Store) Discard(tree chunk.ID) error {
	if err := durable.Discard(s.dir(tree), s.removing(tree)); err != nil {
		return fmt.Errorf("remove tree %s: %w", tree.Short(), err)
	}
	s.closeEarly(tree) // after the removal, because prefetchStart checks last whether the tree exists
	s.forgetLocal(tree)
	s.setLost(tree, nil)
	return nil
}

// Close ends all background fetches. It is called when no device is served any more, because reads
// may need newer locations.
func (s *Store) Close() {
	s.EndStreams()
	s.locator.end()
}
