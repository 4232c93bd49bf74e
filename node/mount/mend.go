package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"lighter/format/chunk"
	"lighter/format/index"
)

// mendPause is the least time between two attempts to mend one tree.
const mendPause = 10 * time.Second

// mending fetches a tree's index once more if its extent map turns out to be
// damaged on the disk under its device; the faults that need it wait. (The metadata
// image is the kernel's to read, which does not verify it.)
type mending struct {
	trees   *Trees
	tree    chunk.ID
	extents *index.Map
	file    *replaceable
	once    singleflight.Group
	ctx     context.Context // ends with the device
	stop    context.CancelFunc
	next    time.Time // of an attempt; used within once alone
}

// Close ends what is on its way.
func (m *mending) Close() error {
	m.stop()
	return nil
}

// mend tells whether the map can be read now. All that ask at a time have one
// answer.
func (m *mending) mend(ctx context.Context, cause error) bool {
	done := m.once.DoChan("", func() (any, error) { return nil, m.mendOnce(cause) })
	select {
	case result := <-done:
		return result.Err == nil
	case <-ctx.Done():
		return false
	}
}

// errNotYet says that the last attempt was a moment ago.
var errNotYet = errors.New("it was tried a moment ago")

func (m *mending) mendOnce(cause error) error {
	if m.extents.Verify() == nil {
		return nil // it was mended since
	}
	if time.Now().Before(m.next) {
		return errNotYet
	}
	m.next = time.Now().Add(mendPause)
	m.trees.log.Warn("an extent map is damaged on the disk under its device, and fetched once more", "tree", m.tree.Short(), "cause", cause)
	err := m.trees.renew(m.ctx, m.tree)
	if err == nil {
		var file *os.File
		if file, err = os.Open(filepath.Join(m.trees.dir(m.tree), "map")); err == nil {
			m.file.replace(file)
			return nil
		}
	}
	m.trees.log.Error("what is not in memory of a tree cannot be read", "tree", m.tree.Short(), "cause", err)
	return err
}

// replaceable is an open file that another can take the place of while it is read.
type replaceable struct {
	mu     sync.Mutex // guards what follows
	file   *os.File
	before *os.File // it may still be read
}

func (r *replaceable) ReadAt(b []byte, at int64) (int, error) {
	r.mu.Lock()
	file := r.file
	r.mu.Unlock()
	return file.ReadAt(b, at)
}

func (r *replaceable) replace(file *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before != nil {
		r.before.Close() // only read: nothing to lose
	}
	r.before, r.file = r.file, file
}

// Close closes the file.
func (r *replaceable) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before != nil {
		r.before.Close()
	}
	return r.file.Close()
}
