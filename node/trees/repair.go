package trees

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"lighter/format/chunk"
	"lighter/format/index"
)

// repair fetches a tree's index again if the extent map is found damaged on the disk while its
// device is read. Faults that need the map wait. A metadata image that the kernel has mounted
// cannot be repaired.
type repair struct {
	store   *Store
	tree    chunk.ID
	extents *index.Map
	file    *replaceable
	once    singleflight.Group
	ctx     context.Context // ends with the device
	next    time.Time       // no other attempt starts before this time; used only inside once
}

// run repairs the extent map, and reports whether it can be read now. Concurrent callers share one
// attempt.
func (r *repair) run(ctx context.Context, cause error) bool {
	done := r.once.DoChan("", func() (any, error) { return nil, r.runOnce(cause) })
	select {
	case result := <-done:
		return result.Err == nil
	case <-ctx.Done():
		return false
	}
}

var errTooSoon = errors.New("the extent map could not be repaired a moment ago")

func (r *repair) runOnce(cause error) error {
	if r.extents.Verify() == nil {
		return nil // another attempt has repaired the map
	}
	if time.Now().Before(r.next) {
		return errTooSoon
	}
	r.next = time.Now().Add(repairPause)
	log := r.store.log.With("tree", r.tree.Short())
	log.Warn("an extent map is damaged on the disk under its device: fetching it again", "err", cause)
	err := r.store.refetch(r.ctx, r.tree)
	if err == nil {
		var file *os.File
		if file, err = os.Open(r.store.mapFile(r.tree)); err == nil {
			r.file.Store(file)
			return nil
		}
	}
	log.Error("cannot repair an extent map: reads that need it fail", "err", err)
	return err
}

// replaceable is an open file that can be replaced by another while it is read.
type replaceable struct{ atomic.Pointer[os.File] }

func (r *replaceable) ReadAt(b []byte, at int64) (int, error) { return r.Load().ReadAt(b, at) }

// Close closes the current file. A replaced file may still be read, so the garbage collector closes
// it.
func (r *replaceable) Close() error { return r.Load().Close() }
