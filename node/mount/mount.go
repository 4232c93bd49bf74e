package mount

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
)

// Mount mounts a tree that is on this machine and returns where. Mounting twice
// is the same as once. It touches the network only if the tree's index is
// damaged.
func (t *Trees) Mount(ctx context.Context, tree chunk.ID) (string, error) {
	defer t.lock(tree)()
	if t.get(tree) == nil {
		if err := t.mount(ctx, tree); err != nil {
			return "", fmt.Errorf("mount tree %s: %w", tree.Short(), err)
		}
	}
	return t.point(tree), nil
}

func (t *Trees) lock(tree chunk.ID) (unlock func()) {
	busy := &t.busy[int(tree[0])%len(t.busy)]
	busy.Lock()
	return busy.Unlock
}

func (t *Trees) get(tree chunk.ID) *mounted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mounted[tree]
}

func (t *Trees) mount(ctx context.Context, tree chunk.ID) (err error) {
	m, err := t.openVerified(ctx, tree)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	path, err := t.server.Add(tree, m.header.DeviceSize, m.device)
	if err != nil {
		return err
	}
	if err := mountOver(path, t.metadata(tree), t.point(tree)); err != nil {
		return errors.Join(err, t.server.Remove(tree))
	}
	t.mu.Lock()
	t.mounted[tree] = m
	t.mu.Unlock()
	return nil
}

func mountOver(device, metadata, point string) error {
	if err := os.Mkdir(point, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := mountErofs(metadata, device, point); err != nil {
		return errors.Join(err, os.Remove(point))
	}
	return nil
}

// openVerified opens a tree that will be mounted. An index that is damaged on
// the disk is fetched once more.
func (t *Trees) openVerified(ctx context.Context, tree chunk.ID) (*mounted, error) {
	m, err := t.tryOpen(ctx, tree)
	if !isDamage(err) {
		return m, err
	}
	t.log.Warn("an index is damaged on the disk, and fetched once more", "tree", tree.Short(), "cause", err)
	if failed := t.renew(ctx, tree); failed != nil {
		return nil, errors.Join(err, failed)
	}
	return t.tryOpen(ctx, tree)
}

func (t *Trees) tryOpen(ctx context.Context, tree chunk.ID) (*mounted, error) {
	m, err := t.open(tree)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(m.extents.Verify(), verifyMetadata(ctx, t.metadata(tree), m.header)); err != nil {
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

func (t *Trees) metadata(tree chunk.ID) string { return filepath.Join(t.dir(tree), "metadata") }

// open opens the parts of a tree that its device reads.
func (t *Trees) open(tree chunk.ID) (*mounted, error) {
	file, err := os.Open(filepath.Join(t.dir(tree), "map"))
	if err != nil {
		return nil, err
	}
	extents, err := index.OpenMap(file, tree)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	m := &mounted{header: extents.Header, extents: extents, files: []io.Closer{file}}
	hint, locations, err := openLocations(t.dir(tree), m.header)
	if err != nil {
		t.log.Warn("no locations: chunks will be asked for by their IDs", "tree", tree.Short(), "cause", err)
	} else {
		m.files = append(m.files, hint)
	}
	m.device = device.New(extents, locations, t.ahead, t.log)
	return m, nil
}

func openLocations(dir string, header index.Header) (*os.File, *index.Locations, error) {
	file, err := os.Open(filepath.Join(dir, "locations"))
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	locations, err := index.OpenLocations(file, info.Size(), header.ID(), header.Extents)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, locations, nil
}

func (m *mounted) close() {
	for _, file := range m.files {
		file.Close() // only read: nothing to lose
	}
}

// verifyMetadata hashes the metadata image, because the kernel will read it
// unverified.
func verifyMetadata(ctx context.Context, path string, h index.Header) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := io.CopyN(sum, file, 16<<20)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the metadata image: %w", err)
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
	defer t.lock(tree)()
	return t.unmount(tree)
}

func (t *Trees) unmount(tree chunk.ID) error {
	m := t.get(tree)
	if m == nil {
		return nil
	}
	if err := unmount(t.point(tree)); err != nil {
		return fmt.Errorf("unmount tree %s: %w", tree.Short(), err)
	}
	t.mu.Lock()
	delete(t.mounted, tree)
	t.mu.Unlock()
	err := errors.Join(os.Remove(t.point(tree)), t.server.Remove(tree))
	m.close()
	return err
}

// Close unmounts everything.
func (t *Trees) Close() error {
	var errs []error
	for _, m := range t.Mounted() {
		errs = append(errs, t.Unmount(m.Tree))
	}
	return errors.Join(errs...)
}

// Mounted says what is mounted and how it is used.
type Mounted struct {
	Tree   chunk.ID     `json:"tree"`
	Dir    string       `json:"dir"`
	Header index.Header `json:"-"`
	Device device.Stats `json:"device"`
}

// Mounted lists the mounted trees.
func (t *Trees) Mounted() []Mounted {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Mounted, 0, len(t.mounted))
	for tree, m := range t.mounted {
		list = append(list, Mounted{tree, t.point(tree), m.header, m.device.Stats()})
	}
	return list
}
