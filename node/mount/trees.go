package mount

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
	"lighter/node/fuse"
	"lighter/node/record"
)

// Trees are the trees on this machine. It is safe for concurrent use.
type Trees struct {
	root     string
	source   Source
	server   *fuse.Server
	ahead    *device.Ahead
	recorder *record.Recorder
	log      *slog.Logger
	kernel   kernel
	pages    *index.Pages // of all extent maps
	locks    locks        // held to mount, unmount, publish or remove a tree, and never over the network

	newer *newer

	locals    locals
	leftovers durable.Leftovers
	probing   sync.Mutex // held while an empty tree is mounted

	mu      sync.Mutex // guards what follows, and what is of the mount in each that is served
	served  map[chunk.ID]*served
	fetches map[chunk.ID]*fetch
	early   []early            // the first has waited longest
	ended   bool               // nothing is fetched for starts any more
	watched map[chunk.ID]bool  // trees of which somebody wants to see what is read: mounts do without the local device
	lost    map[chunk.ID]error // what could not be served again or is damaged, and why
	unable  error              // why no tree can be mounted; nil: they can
	probed  time.Time          // when that was found out
}

// cachedPages bounds the pages of extent maps in memory: 10 MB, which is where
// 170,000 chunks lie.
const cachedPages = 2048

// served is a tree whose device is there, with what it holds open. It need not be
// mounted here: what a former daemon mounted may have users still.
type served struct {
	device   *device.Device
	mending  *mending
	locating *locating
	header   index.Header
	extents  *index.Map
	files    []io.Closer
	path     string // of the device
	mounted  bool
	mode     Mode // of the mount
	local    bool // it reads the local device

	// The tree's lock guards what follows.
	again int  // how often it was mounted once more
	fresh bool // nobody can read the device but through the mount
}

// What lies in trees/ beside the trees: indexes on their way in and out.
const (
	newPrefix = "new-"
	oldPrefix = "rm-"
)

// Devices returns where below root the devices are to be mounted.
func Devices(root string) string { return filepath.Join(root, "devices") }

// Prepare makes the directories below root. It touches no mount.
func Prepare(root string) error {
	for _, dir := range []string{"trees", "mounts", "devices"} {
		// Not MkdirAll: it would look at what is mounted on devices/, and wait for
		// somebody to serve it.
		err := os.Mkdir(filepath.Join(root, dir), 0o700)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("prepare the node's root: %w", err)
		}
	}
	return nil
}

// removeUnfinished removes indexes that were on their way in or out when a former
// daemon ended.
func (t *Trees) removeUnfinished() error {
	trees := filepath.Join(t.root, "trees")
	entries, err := os.ReadDir(trees)
	if err != nil {
		return fmt.Errorf("list the trees: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), newPrefix) || strings.HasPrefix(entry.Name(), oldPrefix) {
			t.leftovers.Remove(filepath.Join(trees, entry.Name()))
		}
	}
	return nil
}

// Leftovers lists what could not be cleaned up.
func (t *Trees) Leftovers() []durable.Leftover { return t.leftovers.List() }

// Open opens the trees below root, which Prepare has prepared. server serves
// their devices, recorder is told of what is mounted, mode is how that is done.
// root is absolute and has no symbolic links.
func Open(root string, mode Mode, source Source, server *fuse.Server, ahead *device.Ahead, recorder *record.Recorder, log *slog.Logger) *Trees {
	return &Trees{root: root, source: source, server: server, ahead: ahead, recorder: recorder, log: log,
		leftovers: durable.Leftovers{Log: log}, pages: index.NewPages(cachedPages),
		locks: newLocks(), fetches: map[chunk.ID]*fetch{},
		newer: newNewer(), kernel: kernel{mode, unix.Mount}, served: map[chunk.ID]*served{}, watched: map[chunk.ID]bool{}, lost: map[chunk.ID]error{},
		locals: locals{making: make(chan struct{}, 1), bytes: map[chunk.ID]int64{}}}
}

func (t *Trees) dir(tree chunk.ID) string   { return filepath.Join(t.root, "trees", tree.String()) }
func (t *Trees) point(tree chunk.ID) string { return filepath.Join(t.root, "mounts", tree.String()) }

// aside returns where a tree's index is on its way out.
func (t *Trees) aside(tree chunk.ID) string {
	return filepath.Join(t.root, "trees", oldPrefix+tree.String())
}

// Has tells whether the tree's index is on this machine.
func (t *Trees) Has(tree chunk.ID) bool {
	_, err := os.Stat(t.dir(tree))
	return err == nil
}

// Size returns what removing the tree would free on disk: its index and its local
// device, if it has one, in bytes, and in how many files.
func (t *Trees) Size(tree chunk.ID) (bytes, files int64) {
	_ = filepath.WalkDir(t.dir(tree), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile: nothing to count
		}
		if entry.IsDir() && slices.Contains([]string{localDir, localNew, localOld}, entry.Name()) {
			return fs.SkipDir // it has holes: what it takes is known
		}
		if info, err := entry.Info(); err == nil {
			files++
			if info.Mode().IsRegular() {
				bytes += (info.Size() + 4095) / 4096 * 4096
			}
		}
		return nil
	})
	if local, ok := t.HasLocal(tree); ok {
		bytes += local
		files += 2 // a directory and the device; the metadata image is counted
	}
	return bytes, files
}

// List returns the trees on this machine.
func (t *Trees) List() ([]chunk.ID, error) {
	entries, err := os.ReadDir(filepath.Join(t.root, "trees"))
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

// Remove unmounts a tree and removes its index.
func (t *Trees) Remove(tree chunk.ID) error {
	defer t.locks.lock(tree)()
	if err := t.unmount(tree); err != nil {
		return err
	}
	if err := durable.Discard(t.dir(tree), t.aside(tree)); err != nil {
		return fmt.Errorf("remove tree %s: %w", tree.Short(), err)
	}
	t.dropEarly(tree) // begin looks after this whether the tree is there
	t.forgetLocal(tree)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lost, tree)
	return nil
}
