package mount

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
	"lighter/node/fuse"
)

// Mount mounts a tree that is on this machine and returns where. Mounting twice
// is the same as once. It touches the network only if the tree's index is
// damaged.
func (t *Trees) Mount(ctx context.Context, tree chunk.ID) (string, error) {
	err := t.useWhole(ctx, tree, func() error { return t.mountIfNeedBe(ctx, tree) })
	if err != nil {
		return "", fmt.Errorf("mount tree %s: %w", tree.Short(), err)
	}
	t.refreshForStart(tree)
	return t.point(tree), nil
}

func (t *Trees) mountIfNeedBe(ctx context.Context, tree chunk.ID) error {
	unlock, err := t.locks.lockOrCancel(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	m := t.get(tree)
	if m == nil || !t.isMounted(m) || t.isStale(tree, m) {
		return t.mount(ctx, tree)
	}
	if !t.isLocal(m) {
		m.device.Begin() // of what was here something may have been evicted
	}
	return nil
}

func (t *Trees) get(tree chunk.ID) *served {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.served[tree]
}

func (t *Trees) isMounted(m *served) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return m.mounted
}

func (t *Trees) setMounted(m *served, mounted bool, mode Mode, local bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.mounted, m.mode, m.local = mounted, mode, local
}

// mount mounts a tree, whose lock the caller holds.
func (t *Trees) mount(ctx context.Context, tree chunk.ID) error {
	if err := t.Mountable(); err != nil {
		return err
	}
	m, err := t.openVerified(ctx, tree)
	if err != nil {
		return err
	}
	known := t.get(tree)
	if known != nil {
		m.close() // it was opened to be verified
		m = known
	} else if err := t.serve(tree, m); err != nil {
		return err
	}
	t.dropEarly(tree) // it came meanwhile
	mode, local := t.mountLocal(tree, m)
	if !local {
		t.recorder.Mounted(tree, m.device) // before anybody can read
		m.device.Begin()
		mode, err = mountOver(t.kernel.mountErofs, t.metadata(tree), m.path, t.point(tree))
	}
	switch {
	case err == nil:
		t.setMounted(m, true, mode, local)
		m.fresh = known == nil && !local
	case known == nil:
		err = errors.Join(err, t.unserve(tree, m))
	}
	return err
}

// serve makes the tree's device, which takes over m.
func (t *Trees) serve(tree chunk.ID, m *served) error {
	var err error
	if m.path, err = t.server.Add(tree, m.header.DeviceSize, m.device); err != nil {
		m.close()
		return err
	}
	t.mu.Lock()
	t.served[tree] = m
	delete(t.lost, tree)
	t.mu.Unlock()
	m.locating.begin()
	return nil
}

func (t *Trees) unserve(tree chunk.ID, m *served) error {
	t.recorder.Unmounted(tree)
	t.mu.Lock()
	delete(t.served, tree)
	t.mu.Unlock()
	err := t.server.Remove(tree)
	m.close()
	return err
}

// mountOver has mount, which is mountErofs or mountLocal, mount a tree at point, over
// what may be mounted there: its users keep that.
func mountOver(mount func(metadata, device, dir string) (Mode, error), metadata, device, point string) (Mode, error) {
	if err := os.Mkdir(point, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	mode, err := mount(metadata, device, point)
	if err != nil {
		return "", errors.Join(err, os.Remove(point))
	}
	return mode, nil
}

// openVerified opens a tree that will be mounted. An index that is damaged on
// the disk is a damagedError.
func (t *Trees) openVerified(ctx context.Context, tree chunk.ID) (*served, error) {
	m, err := t.tryOpen(ctx, tree)
	return m, damaged(err)
}

func (t *Trees) tryOpen(ctx context.Context, tree chunk.ID) (*served, error) {
	m := t.takeEarly(tree)
	if m == nil {
		var err error
		if m, err = t.open(tree); err != nil {
			return nil, err
		}
	}
	err := m.extents.Verify()
	if err == nil {
		err = verifyMetadata(ctx, t.metadata(tree), m.header, 0)
	}
	if err == nil { // again: a former daemon that fetched it may not have looked
		err = checkMetadata(ctx, t.metadata(tree), m.header)
		if invalid := new(chunk.InvalidError); errors.As(err, &invalid) {
			err = fmt.Errorf("%v, and was signed like that", err) // no damage: it would come like that again
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// isDamage tells whether an error says that files are not what was verified when
// they were written: changed, cut off, gone or unreadable.
func isDamage(err error) bool {
	var invalid *chunk.InvalidError
	return errors.As(err, &invalid) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EIO)
}

func (t *Trees) metadata(tree chunk.ID) string  { return filepath.Join(t.dir(tree), "metadata") }
func (t *Trees) locations(tree chunk.ID) string { return filepath.Join(t.dir(tree), "locations") }

// open opens the parts of a tree that its device reads.
func (t *Trees) open(tree chunk.ID) (*served, error) {
	file, err := os.Open(filepath.Join(t.dir(tree), "map"))
	if err != nil {
		return nil, err
	}
	read := &replaceable{file: file}
	extents, err := index.OpenMap(read, tree, t.pages)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	m := &served{header: extents.Header, extents: extents}
	hint, locations, err := openLocations(t.locations(tree), tree, m.header.Extents)
	if err != nil {
		t.log.Warn("no locations: chunks will be asked for by their IDs until they come", "tree", tree.Short(), "cause", err)
	}
	m.device = device.New(extents, locations, t.ahead, t.log)
	m.locating = t.locate(tree, m.header.Extents, m.device, hint)
	m.mending = &mending{trees: t, tree: tree, extents: extents, file: read}
	m.mending.ctx, m.mending.stop = context.WithCancel(context.Background())
	m.files = []io.Closer{read, m.locating, m.mending, m.device}
	m.device.MendWith(m.mending.mend)
	return m, nil
}

func (m *served) close() {
	for _, file := range m.files {
		file.Close() // only read: nothing to lose
	}
}

// verifyMetadata hashes the metadata image, because the kernel will read it
// unverified: at most rate bytes a second, and from the disk, or as fast as it goes
// if rate is 0.
func verifyMetadata(ctx context.Context, path string, h index.Header, rate int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if rate > 0 { // advice
		_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	sum := sha256.New()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(sum, file, 1<<20)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the metadata image: %w", err)
		}
		if rate > 0 {
			pause(ctx, time.Duration(float64(n)/float64(rate)*float64(time.Second)))
		}
	}
	if got := chunk.ID(sum.Sum(nil)); got != h.Metadata {
		return &chunk.InvalidError{What: "metadata image " + path, Err: fmt.Errorf("its digest is %s, the index says %s", got.Short(), h.Metadata.Short())}
	}
	return nil
}

// Unmount undoes Mount. Containers that still use the tree keep it alive in the
// kernel, but its faults are no longer answered; so the caller makes sure that
// there are none.
func (t *Trees) Unmount(tree chunk.ID) error {
	defer t.locks.lock(tree)()
	return t.unmount(tree)
}

func (t *Trees) unmount(tree chunk.ID) error {
	m := t.get(tree)
	if m == nil {
		return nil
	}
	hidden := make(chan struct{})
	var calling sync.WaitGroup
	calling.Go(func() { t.callOff(tree, hidden) })
	err := t.hide(tree, m)
	close(hidden)
	calling.Wait()
	if err != nil {
		return err
	}
	return t.unserve(tree, m)
}

const (
	// hideTimeout is how long the kernel may wait for the reads of a tree that it
	// unmounts before they are called off, hideAgain how soon that is done again.
	hideTimeout = 2 * time.Second
	hideAgain   = 100 * time.Millisecond
)

// callOff calls off the reads of a tree until it is hidden, if the kernel has taken
// the mount away and still does not return: it waits for them, and it does so only
// for a tree that nobody else uses. Whoever asked for them was killed.
func (t *Trees) callOff(tree chunk.ID, hidden <-chan struct{}) {
	for wait := hideTimeout; ; wait = hideAgain {
		select {
		case <-hidden:
			return
		case <-time.After(wait):
		}
		mounts, err := mountPoints(t.root)
		if _, mounted := mounts[t.point(tree)]; err == nil && !mounted {
			t.server.CallOff(tree)
		}
	}
}

// hide takes the tree's mount away. Overlays and other mounts made of it keep it
// alive, and go on reading its device.
func (t *Trees) hide(tree chunk.ID, m *served) error {
	if err := unmount(t.point(tree)); err != nil {
		t.lookAgain(tree, m)
		return fmt.Errorf("unmount tree %s: %w", tree.Short(), err)
	}
	t.setMounted(m, false, "", false)
	m.again = 0
	if err := os.Remove(t.point(tree)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount tree %s: %w", tree.Short(), err)
	}
	return nil
}

// Mounted says what is mounted and how it is used.
type Mounted struct {
	Tree   chunk.ID     `json:"tree"`
	Dir    string       `json:"dir"`
	Mode   Mode         `json:"mode"`  // File or Loop
	Local  bool         `json:"local"` // its newest mount reads a local file: the daemon is not in the path
	Header index.Header `json:"-"`
	Device DeviceStats  `json:"device"`
}

// DeviceStats are the figures of a tree's device: its own, and those of the server for it.
type DeviceStats struct {
	device.Stats
	fuse.DeviceStats
}

// Mounted lists the mounted trees.
func (t *Trees) Mounted() []Mounted {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Mounted, 0, len(t.served))
	for tree, m := range t.served {
		if !m.mounted {
			continue
		}
		list = append(list, Mounted{tree, t.point(tree), m.mode, m.local, m.header, DeviceStats{m.device.Stats(), t.server.DeviceStats(tree)}})
	}
	return list
}
