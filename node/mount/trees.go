package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
)

// Source is where indexes come from (a hub).
type Source interface {
	// Index streams the plain bytes of an index, unverified.
	Index(ctx context.Context, tree chunk.ID) (io.ReadCloser, error)
	// Locations streams a tree's locations.
	Locations(ctx context.Context, tree chunk.ID) (io.ReadCloser, error)
}

// fetchTimeout bounds the download of one index.
const fetchTimeout = 60 * time.Second

// Trees are the trees on this machine. It is safe for concurrent use.
type Trees struct {
	root    string
	source  Source
	server  *device.Server
	ahead   *device.Ahead
	log     *slog.Logger
	fetches singleflight.Group

	// busy serialises mounting, unmounting and removing of one tree; a few
	// trees share a lock, which costs them nothing but time.
	busy [64]sync.Mutex

	mu      sync.Mutex // guards mounted
	mounted map[chunk.ID]*mounted
}

// mounted is what a mounted tree holds open.
type mounted struct {
	device *device.Device
	header index.Header
	files  []io.Closer
}

// Open opens the trees below root, which Prepare has prepared. server serves
// their devices.
func Open(root string, source Source, server *device.Server, ahead *device.Ahead, log *slog.Logger) *Trees {
	return &Trees{root: root, source: source, server: server, ahead: ahead, log: log, mounted: map[chunk.ID]*mounted{}}
}

// Devices returns where below root the devices are to be mounted.
func Devices(root string) string { return filepath.Join(root, "devices") }

// Prepare makes the directories below root, and removes what a former daemon
// left there that is worth nothing without it: its mounts, and indexes that did
// not arrive. It must come before the devices are mounted.
func Prepare(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("prepare the node's root: %w", err)
	}
	mounts, err := mountPoints(root)
	if err != nil {
		return err
	}
	var trees, devices []string
	for dir := range mounts {
		if filepath.Base(filepath.Dir(dir)) == "mounts" {
			trees = append(trees, dir)
		} else if filepath.Base(dir) == "devices" {
			devices = append(devices, dir)
		}
	}
	for _, dir := range append(trees, devices...) { // trees use the devices
		if err := unmount(dir); err != nil {
			return err
		}
	}
	// os.Remove: what is mounted after all, or was never ours, stays.
	if err := removeEach(filepath.Join(root, "mounts", "*"), os.Remove); err != nil {
		return err
	}
	if err := removeEach(filepath.Join(root, "trees", "new-*"), os.RemoveAll); err != nil {
		return err
	}
	for _, dir := range []string{"trees", "mounts", "devices"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return fmt.Errorf("prepare the node's root: %w", err)
		}
	}
	return nil
}

func removeEach(pattern string, remove func(string) error) error {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := remove(name); err != nil {
			return fmt.Errorf("remove what a former daemon left: %w", err)
		}
	}
	return nil
}

func (t *Trees) dir(tree chunk.ID) string   { return filepath.Join(t.root, "trees", tree.String()) }
func (t *Trees) point(tree chunk.ID) string { return filepath.Join(t.root, "mounts", tree.String()) }

// Has tells whether the tree's index is on this machine.
func (t *Trees) Has(tree chunk.ID) bool {
	_, err := os.Stat(t.dir(tree))
	return err == nil
}

// Size returns what the tree's index takes on disk, in bytes, and in how many
// files.
func (t *Trees) Size(tree chunk.ID) (bytes, files int64) {
	_ = filepath.WalkDir(t.dir(tree), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile: nothing to count
		}
		if info, err := entry.Info(); err == nil {
			files++
			if info.Mode().IsRegular() {
				bytes += (info.Size() + 4095) / 4096 * 4096
			}
		}
		return nil
	})
	return bytes, files
}

// Ensure makes sure that the tree's index is on this machine, verified and
// synced to its disk.
func (t *Trees) Ensure(ctx context.Context, tree chunk.ID) error {
	if t.Has(tree) {
		return nil
	}
	// Whoever comes first gives up when it likes; the others still want it.
	done := t.fetches.DoChan(tree.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		return nil, t.fetch(ctx, tree)
	})
	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("fetch index %s: %w", tree.Short(), context.Cause(ctx))
	}
}

func (t *Trees) fetch(ctx context.Context, tree chunk.ID) (err error) {
	if t.Has(tree) {
		return nil
	}
	fresh := filepath.Join(t.root, "trees", "new-"+tree.String())
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("fetch index %s: %w", tree.Short(), err), os.RemoveAll(fresh))
		}
	}()
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.fetchIndex(ctx, tree, fresh) })
	group.Go(func() error {
		if err := t.fetchLocations(ctx, tree, fresh); err != nil {
			t.log.Warn("no locations: chunks will be asked for by their IDs", "tree", tree.Short(), "cause", err)
			return removeIfThere(filepath.Join(fresh, "locations"))
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return publish(fresh, t.dir(tree))
}

func (t *Trees) fetchIndex(ctx context.Context, tree chunk.ID, dir string) error {
	plain, err := t.source.Index(ctx, tree)
	if err != nil {
		return err
	}
	defer plain.Close()
	return writeSynced(filepath.Join(dir, "map"), func(extents io.Writer) error {
		return writeSynced(filepath.Join(dir, "metadata"), func(metadata io.Writer) error {
			_, err := index.Receive(plain, tree, extents, metadata)
			return err
		})
	})
}

func (t *Trees) fetchLocations(ctx context.Context, tree chunk.ID, dir string) error {
	plain, err := t.source.Locations(ctx, tree)
	if err != nil {
		return err
	}
	defer plain.Close()
	return writeSynced(filepath.Join(dir, "locations"), func(w io.Writer) error {
		_, err := io.Copy(w, io.LimitReader(plain, maxLocations))
		return err
	})
}

// maxLocations bounds the locations of one tree: 8 bytes for each of 100
// million extents.
const maxLocations = 800 << 20

// writeSynced writes a new file and syncs it.
func writeSynced(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffered); err != nil {
		return err
	}
	return errors.Join(buffered.Flush(), file.Sync(), file.Close())
}

// publish gives a finished directory its name, for good.
func publish(fresh, dir string) error {
	if err := syncDir(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// List returns the trees on this machine.
func (t *Trees) List() ([]chunk.ID, error) {
	entries, err := os.ReadDir(filepath.Join(t.root, "trees"))
	if err != nil {
		return nil, fmt.Errorf("list the trees: %w", err)
	}
	var trees []chunk.ID
	for _, entry := range entries {
		if id, err := chunk.ParseID(entry.Name()); err == nil && !strings.HasPrefix(entry.Name(), "new-") {
			trees = append(trees, id)
		}
	}
	return trees, nil
}
