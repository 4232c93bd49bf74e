package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
	"lighter/node/fuse"
	"lighter/node/record"
	"lighter/node/trees"
)

// Mounts has the kernel mounts of a node's trees. It is safe for concurrent use.
type Mounts struct {
	root     string
	trees    *trees.Store
	server   *fuse.Server
	recorder *record.Recorder
	log      *slog.Logger
	kernel   kernel
	probing  sync.Mutex // held while an empty tree is mounted

	mu      sync.Mutex // guards what follows
	mounted map[chunk.ID]Mount
	watched map[chunk.ID]bool // trees whose new mounts do not use the local device (MountAgain, Unwatch)
	unable  error             // why the last probe could not mount a tree; nil: it could, or did not find out
	probed  time.Time         // when the last probe ended
}

// Mount is the newest mount of a tree. Older mounts of the tree, also of previous daemons, may be
// below it and have users of their own. A Mount is changed only by the holder of the tree's lock.
type Mount struct {
	Kind  Kind
	Mode  Mode
	count int // how many mounts MountAgain has put over the first mount
}

// Kind says what a mount reads.
type Kind int

const (
	NewDevice   Kind = iota + 1 // the served device, which nothing could read before this mount
	KnownDevice                 // the served device, which other mounts may have read
	LocalDevice                 // the local device
)

// Prepare makes the directories below root, without touching a mount.
func Prepare(root string) error {
	if err := trees.Prepare(root); err != nil {
		return err
	}
	for _, dir := range []string{pointsDir(root), Devices(root)} {
		// Not MkdirAll: it would stat the file system on devices/, and wait for its server.
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("prepare the node's root: %w", err)
		}
	}
	return nil
}

// Devices returns the directory below root on which the devices' FUSE file system is mounted.
func Devices(root string) string { return filepath.Join(root, "devices") }

func pointsDir(root string) string { return filepath.Join(root, "mounts") }

// New returns a Mounts without mounts, for the trees of a store. Prepare has prepared root, which
// is absolute and has no symbolic links. recorder observes the reads of devices.
func New(
	root string, mode Mode, store *trees.Store, server *fuse.Server, recorder *record.Recorder, log *slog.Logger,
) *Mounts {
	m := &Mounts{root: root, trees: store, server: server, recorder: recorder, log: log,
		kernel: kernel{mode, unix.Mount}, mounted: map[chunk.ID]Mount{}, watched: map[chunk.ID]bool{}}
	store.AskMounted(func(tree chunk.ID) bool {
		mount, _ := m.get(tree)
		return mount.Kind == LocalDevice
	})
	return m
}

func (m *Mounts) point(tree chunk.ID) string { return filepath.Join(pointsDir(m.root), tree.String()) }

// get returns the newest mount of a tree.
func (m *Mounts) get(tree chunk.ID) (mount Mount, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mount, ok = m.mounted[tree]
	return mount, ok
}

// set sets the newest mount of a tree.
func (m *Mounts) set(tree chunk.ID, mount Mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounted[tree] = mount
}

func (m *Mounts) forget(tree chunk.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mounted, tree)
}

// Mount mounts a tree unless it is mounted, and returns the directory. It waits for the network
// only if the tree's index is damaged. If a local device was made or removed since the tree was
// mounted, Mount mounts the tree again, over the existing mount.
func (m *Mounts) Mount(ctx context.Context, tree chunk.ID) (string, error) {
	err := m.trees.WithRepair(ctx, tree, func() error { return m.ensure(ctx, tree) })
	if err != nil {
		return "", fmt.Errorf("mount tree %s: %w", tree.Short(), err)
	}
	m.trees.Refresh(tree)
	return m.point(tree), nil
}

func (m *Mounts) ensure(ctx context.Context, tree chunk.ID) error {
	unlock, err := m.trees.LockContext(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	mount, ok := m.get(tree)
	isLocal := mount.Kind == LocalDevice
	if !ok || isLocal != m.usesLocal(tree) {
		return m.mount(ctx, tree)
	}
	if !isLocal {
		m.trees.Served(tree).Device.Begin() // prefetches again: chunks of the start may have been evicted
	}
	return nil
}

// mount mounts a tree, over an existing mount if there is one. The caller holds the tree's lock.
func (m *Mounts) mount(ctx context.Context, tree chunk.ID) error {
	if err := m.CheckMountable(); err != nil {
		return err
	}
	open, fresh, err := m.trees.Serve(ctx, tree)
	if err != nil {
		return err
	}
	mount, ok := m.mountLocal(tree, open)
	if !ok {
		m.recorder.Mounted(tree, open.Device) // before anything can be read
		open.Device.Begin()
		mount.Kind = KnownDevice
		if fresh {
			mount.Kind = NewDevice
		}
		mount.Mode, err = mountOn(m.point(tree), func(point string) (Mode, error) {
			return m.kernel.mountErofs(m.trees.Metadata(tree), open.Path, point)
		})
	}
	switch {
	case err == nil:
		before, _ := m.get(tree)
		mount.count = before.count
		m.set(tree, mount)
	case fresh:
		err = errors.Join(err, m.unserve(tree))
	}
	return err
}

// usesLocal reports whether a new mount of a tree should read the local device.
func (m *Mounts) usesLocal(tree chunk.ID) bool {
	_, has := m.trees.HasLocal(tree)
	m.mu.Lock()
	defer m.mu.Unlock()
	return has && !m.watched[tree]
}

// mountLocal mounts a tree with its local device, if a new mount should read it (usesLocal). A
// local device that cannot be mounted is removed.
func (m *Mounts) mountLocal(tree chunk.ID, open *trees.OpenTree) (mount Mount, ok bool) {
	if !m.usesLocal(tree) {
		return Mount{}, false
	}
	device := m.trees.LocalDevice(tree)
	info, err := os.Stat(device)
	if err == nil && info.Size() != open.Header.DeviceSize {
		err = fmt.Errorf("it has %d bytes, want %d", info.Size(), open.Header.DeviceSize)
	}
	if err == nil {
		mount.Kind = LocalDevice
		mount.Mode, err = mountOn(m.point(tree), func(point string) (Mode, error) {
			return m.kernel.mountLocal(m.trees.LocalMetadata(tree), device, point)
		})
	}
	if err == nil {
		return mount, true
	}
	_, failed := m.trees.DiscardLocal(tree)
	m.log.Error("cannot use a local device: the tree is mounted from the served device",
		"tree", tree.Short(), "err", errors.Join(err, failed))
	return Mount{}, false
}

// mountOn makes the directory point, and calls mount to mount a tree on it. An existing mount stays
// below the new mount, and keeps its users.
func mountOn(point string, mount func(point string) (Mode, error)) (Mode, error) {
	if err := os.Mkdir(point, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	mode, err := mount(point)
	if err != nil {
		return "", errors.Join(err, os.Remove(point))
	}
	return mode, nil
}

func (m *Mounts) unserve(tree chunk.ID) error {
	m.recorder.Unmounted(tree)
	return m.trees.Unserve(tree)
}

// Mounted describes a mounted tree and how it is used.
type Mounted struct {
	Tree   chunk.ID     `json:"tree"`
	Dir    string       `json:"dir"`   // mount point
	Mode   Mode         `json:"mode"`  // File or Loop
	Local  bool         `json:"local"` // the newest mount reads the local device, without the daemon
	Header index.Header `json:"-"`     // of the tree's index
	Device DeviceStats  `json:"device"`
}

// DeviceStats are the figures of a tree's device: those that the device counts, and those that the
// server counts.
type DeviceStats struct {
	device.Stats
	fuse.DeviceStats
	// Received has the number of compressed bytes that were received for the device, by the URL of
	// the hub or mirror. If two devices need a unit, its bytes count for the device that requested
	// the unit first.
	Received map[string]int64 `json:"receivedBytes"`
}

// Mounted returns the mounted trees.
func (m *Mounts) Mounted() []Mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Mounted, 0, len(m.mounted))
	for tree, mount := range m.mounted {
		if open := m.trees.Served(tree); open != nil {
			list = append(list, Mounted{Tree: tree, Dir: m.point(tree), Mode: mount.Mode,
				Local: mount.Kind == LocalDevice, Header: open.Header,
				Device: DeviceStats{open.Device.Stats(), m.server.DeviceStats(tree), open.Device.Received()}})
		}
	}
	return list
}
