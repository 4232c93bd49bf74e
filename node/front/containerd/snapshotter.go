package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"lighter/durable"
)

// openTimeout bounds the wait for the lock on metadata.db. A daemon that is being replaced releases
// the lock in much less time. By default bbolt waits without limit.
const openTimeout = 10 * time.Second

// Config says where the snapshots are and how they are mounted.
type Config struct {
	// Dir has metadata.db and one directory per snapshot. It is created if it is missing. Its file
	// system must support overlayfs upper directories.
	Dir string

	// RemapIDs passes the ID mappings of user namespaces to the mount. It must be set if, and only
	// if, containerd's configuration declares the capability "remap-ids" for this snapshotter.
	// Otherwise files are mapped twice, or not at all.
	RemapIDs bool

	// Beside is a path in the directory of the mounted trees. If a container with a user namespace
	// needs that, Dir is also mounted at this path, read-only. Beside is used only with RemapIDs.
	Beside string

	// BindViews makes a view of only a tree a bind mount, not an overlay. BuildKit needs that to
	// find the directory with the changes of a build step.
	BindViews bool
	// NoteLazy is called when the top layer of an image is claimed, before Prepare answers, with
	// the digest of the manifest that is pulled. It returns in bounded time. nil: it is not called.
	NoteLazy func(ctx context.Context, manifest string)
	// NoteMounts is called when the mounts of an active snapshot on a lazy chain are asked for, as
	// before a container starts. It does not wait. nil: it is not called.
	NoteMounts func(key, chain string)

	Log *slog.Logger
}

// A Snapshotter implements containerd's snapshots.Snapshotter and its Cleaner.
type Snapshotter struct {
	dir        string
	remapIDs   bool
	bindViews  bool
	options    []string // options that every overlay mount gets
	store      *storage.MetaStore
	chains     Chains
	noteLazy   func(ctx context.Context, manifest string) // Config.NoteLazy
	noteMounts func(key, chain string)                    // Config.NoteMounts
	log        *slog.Logger

	leftovers durable.Leftovers

	beside   string     // Config.Beside
	besideMu sync.Mutex // held while beside is mounted or unmounted
}

var (
	_ snapshots.Snapshotter = (*Snapshotter)(nil)
	_ snapshots.Cleaner     = (*Snapshotter)(nil)
)

// New opens the snapshots in cfg.Dir, or makes an empty store there. It cleans up after a daemon
// that was interrupted. It calls chains.Hold for the chain of each lazy snapshot, and no other
// method of chains.
func New(cfg Config, chains Chains) (*Snapshotter, error) {
	if err := os.MkdirAll(filepath.Join(cfg.Dir, emptyDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the snapshot directory: %w", err)
	}
	options, err := overlayOptions(cfg.Dir, cfg.Log)
	if err != nil {
		return nil, err
	}
	store, err := storage.NewMetaStore(filepath.Join(cfg.Dir, "metadata.db"), func(o *bolt.Options) error {
		o.Timeout = openTimeout
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", cfg.Dir, err)
	}
	s := &Snapshotter{
		dir: cfg.Dir, remapIDs: cfg.RemapIDs, bindViews: cfg.BindViews, beside: cfg.Beside, options: options,
		store: store, chains: chains, noteLazy: cfg.NoteLazy, noteMounts: cfg.NoteMounts, log: cfg.Log,
		leftovers: durable.Leftovers{Log: cfg.Log},
	}
	if err := s.begin(context.Background()); err != nil {
		err = fmt.Errorf("open the snapshots in %s (is another node using them?): %w", cfg.Dir, err)
		return nil, errors.Join(err, store.Close())
	}
	return s, nil
}

// begin calls Hold for the chains of the lazy snapshots in the store, and cleans up. A failed
// cleanup is no error, because the disk may be full.
func (s *Snapshotter) begin(ctx context.Context) error {
	err := s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		names, err := idMap(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if chain, ok := chainOf(name); ok {
				s.chains.Hold(chain)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_ = s.Cleanup(ctx) // Leftovers has the cause, and containerd calls Cleanup again
	return nil
}

// overlayOptions returns the options that containerd's overlay snapshotter appends to its mounts on
// this kernel.
func overlayOptions(dir string, log *slog.Logger) ([]string, error) {
	dtype, err := fs.SupportsDType(dir)
	if err != nil {
		return nil, fmt.Errorf("check the file system of %s for d_type: %w", dir, err)
	}
	if !dtype {
		return nil, fmt.Errorf("the file system of %s has no d_type, which overlayfs needs: "+
			"use another one (xfs: format it with ftype=1)", dir)
	}
	if err := checkUpper(dir); err != nil {
		return nil, err
	}
	var options []string
	userxattr, err := overlayutils.NeedsUserXAttr(dir)
	if err != nil {
		log.Warn("cannot find out whether overlayfs needs userxattr", "assumed", userxattr, "err", err)
	}
	if userxattr {
		options = append(options, "userxattr")
	}
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		options = append(options, "index=off")
	}
	return options, nil
}

// checkUpper refuses a file system that overlayfs rejects (with EINVAL) for upper directories,
// because no container could start. It ignores other errors, which may be temporary.
func checkUpper(dir string) error {
	if err := overlayutils.SupportsMultipleLowerDir(dir); errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("overlayfs refuses the file system of %s for an upper directory, so containers could not "+
			"write (an overlayfs is refused, for example the root of a container): "+
			"give the node a --root on an ordinary local file system, or on tmpfs", dir)
	}
	return nil
}

// Close closes the store. It may be called twice.
func (s *Snapshotter) Close() error {
	if err := s.unmountBeside(); err != nil {
		s.log.Info("cannot unmount the snapshots beside the trees", "err", err)
	}
	return s.store.Close()
}

// info returns a snapshot's ID, record and usage from the store.
func (s *Snapshotter) info(
	ctx context.Context, key string,
) (id string, info snapshots.Info, usage snapshots.Usage, err error) {
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	return id, info, usage, err
}

// Stat returns the record of the snapshot with the name key.
func (s *Snapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	_, info, _, err := s.info(ctx, key)
	return info, err
}

// Update changes the labels of a snapshot, except the label by which containerd finds a lazy
// snapshot.
func (s *Snapshotter) Update(
	ctx context.Context, info snapshots.Info, fieldpaths ...string,
) (updated snapshots.Info, err error) {
	if ref, ok := refOf(info.Name); ok {
		info.Labels = withLabel(info.Labels, snapshots.LabelSnapshotRef, ref)
	}
	err = s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		updated, err = storage.UpdateInfo(ctx, info, fieldpaths...)
		return err
	})
	return updated, err
}

// Usage returns what the removal of a snapshot would free. For an active snapshot it measures the
// upper directory.
func (s *Snapshotter) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	id, info, usage, err := s.info(ctx, key)
	if err != nil {
		return snapshots.Usage{}, err
	}
	if chain, ok := chainOf(key); ok {
		usage.Size, usage.Inodes = s.chains.Usage(chain)
		return usage, nil
	}
	if info.Kind != snapshots.KindActive {
		return usage, nil
	}
	du, err := fs.DiskUsage(ctx, s.fsPath(id))
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("measure snapshot %s: %w", key, err)
	}
	return snapshots.Usage(du), nil
}

// Walk calls fn for each snapshot that matches the filters. It reads all of them before it calls
// fn: fn may wait for a slow client, and an open read transaction delays writers.
func (s *Snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	infos, err := s.list(ctx, filters...)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if err := fn(ctx, info); err != nil {
			return err
		}
	}
	return nil
}

// list returns the snapshots that match the filters.
func (s *Snapshotter) list(ctx context.Context, filters ...string) (infos []snapshots.Info, err error) {
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(_ context.Context, info snapshots.Info) error {
			infos = append(infos, info)
			return nil
		}, filters...)
	})
	if errdefs.IsNotFound(err) { // the store has no snapshot yet
		return nil, nil
	}
	return infos, err
}

// idMap returns the names of the snapshots by ID, as storage.IDMap does. For a store that never had
// a snapshot, it returns an empty map and no error.
func idMap(ctx context.Context) (map[string]string, error) {
	names, err := storage.IDMap(ctx)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return names, err
}
