package uploads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/hub/ingest"
	"lighter/hub/rootdir"
)

// upload is a blob that a client pushes, with a copy of what has arrived. It is split by one
// goroutine, which begins when minBytes have arrived and ends when the upload is complete or was
// dropped.
type upload struct {
	splitter *Splitter
	file     *os.File // has no name
	expiry   *time.Timer
	read     atomic.Int64  // bytes that were split
	done     chan struct{} // closed when nothing more is done for the upload
	slot     *semaphore.Weighted
	admitted chan struct{} // closed by Admit; nil: the layer need not be admitted

	digest string // in Splitter.ending; guarded by Splitter.mu, as the following
	of     blob   // in Splitter.held
	gone   bool   // end was called

	mu       sync.Mutex // guards the following
	arrived  int64
	requests int           // in progress
	last     time.Time     // end of the last request
	checked  int64         // bytes when the disk was last looked at
	begun    bool          // the goroutine was started
	ended    bool          // end was called, without a goroutine
	accepted string        // the digest under which the registry has accepted the blob
	err      error         // why the upload was dropped
	changed  chan struct{} // closed and replaced at each change
}

// newUpload makes an upload. Splitter.mu is held.
func (s *Splitter) newUpload() (*upload, error) {
	file, err := rootdir.OpenScratch(s.config.Dir)
	if err != nil {
		return nil, err
	}
	u := &upload{splitter: s, file: file, done: make(chan struct{}), changed: make(chan struct{}),
		slot: s.config.Bounds.uploads}
	if s.config.Hold > 0 {
		u.admitted = make(chan struct{})
	}
	return u, nil
}

// size returns how many bytes were copied.
func (u *upload) size() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.arrived
}

// write copies the next bytes. If that fails, the upload is dropped.
func (u *upload) write(b []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.isOver() || len(b) == 0 {
		return
	}
	if err := u.copy(b); err != nil {
		u.err = err
	} else if !u.begun && u.arrived >= u.splitter.MinBytes {
		u.begun = true
		u.splitter.tasks.Go(u.split)
	}
	u.notify()
}

// copy writes the next bytes to the file. u.mu is held.
func (u *upload) copy(b []byte) error {
	c, n := &u.splitter.config, int64(len(b))
	if u.arrived-u.checked >= roomBytes {
		u.checked = u.arrived
		if err := c.Room(); err != nil {
			return err
		}
	}
	if !c.Bounds.bytes.TryAcquire(n) {
		return errors.New("the copies of all uploads take too much space")
	}
	if _, err := u.file.WriteAt(b, u.arrived); err != nil {
		c.Bounds.bytes.Release(n)
		return err
	}
	u.arrived += n
	return nil
}

// request notes that a request of the upload is in progress, until end is called.
func (u *upload) request() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.requests--
		u.last = time.Now()
	}
}

// isStalled reports whether the upload waits for bytes, and has had no request for stallTime.
func (u *upload) isStalled() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.isOver() && u.requests == 0 && u.read.Load() == u.arrived && time.Since(u.last) >= stallTime
}

// isOver reports whether the registry has accepted the blob, or the upload was dropped. u.mu is
// held.
func (u *upload) isOver() bool { return u.accepted != "" || u.err != nil }

// notify wakes the goroutine. u.mu is held.
func (u *upload) notify() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// complete says that the registry has accepted the blob.
func (u *upload) complete(digest string) { u.over(digest, nil) }

// drop says that nothing is to be done for the upload any more.
func (u *upload) drop(why error) { u.over("", why) }

func (u *upload) over(accepted string, why error) {
	u.mu.Lock()
	first := !u.isOver()
	if first {
		u.accepted, u.err = accepted, why
		u.notify()
	}
	idle := !u.begun && !u.ended
	u.ended = u.ended || idle
	u.mu.Unlock()
	if idle { // it was too small to be split, or could not be copied
		u.end()
	}
}

// end releases what the upload has. It is called once.
func (u *upload) end() {
	s := u.splitter
	s.mu.Lock()
	if s.ending[u.digest] == u {
		delete(s.ending, u.digest)
	}
	if s.held[u.of] == u {
		delete(s.held, u.of)
	}
	u.gone = true
	s.mu.Unlock()
	_ = u.file.Close() // it has no name
	s.config.Bounds.bytes.Release(u.size())
	u.slot.Release(1)
	close(u.done)
}

// split splits what arrives, and publishes the layer when the registry has accepted the blob, and
// the layer is admitted.
func (u *upload) split() {
	defer u.end()
	s := u.splitter
	started := time.Now()
	layer, err := u.prepare(s.life)
	if err == nil {
		defer layer.Close()
		err = u.publish(s.life, layer)
	}
	if err != nil {
		s.config.Log.Debug("a blob was not split while it was pushed", "err", err)
		u.drop(err)
		return
	}
	s.config.Log.Debug("a layer was split while it was pushed", "digest", layer.Digest,
		"duration", time.Since(started))
}

// prepare splits what arrives, until the registry has accepted the blob. The caller closes the
// layer.
func (u *upload) prepare(ctx context.Context) (*ingest.PreparedLayer, error) {
	c := &u.splitter.config
	if err := c.Bounds.splits.take(ctx, u); err != nil {
		return nil, err
	}
	defer c.Bounds.splits.leave(u)
	layer, err := c.Ingester.PrepareLayer(ctx, &follower{upload: u, ctx: ctx})
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	accepted := u.accepted
	u.mu.Unlock()
	if layer.Digest != accepted {
		layer.Close()
		return nil, fmt.Errorf("the copy has digest %s, and the registry has accepted %s", layer.Digest, accepted)
	}
	return layer, nil
}

// publish publishes a layer as soon as it is admitted.
func (u *upload) publish(ctx context.Context, layer *ingest.PreparedLayer) error {
	if u.admitted != nil {
		_ = u.file.Close() // nothing reads or writes the copy any more
		if err := u.awaitAdmission(ctx); err != nil {
			return err
		}
	}
	return layer.Publish(ctx)
}

// awaitAdmission waits until the layer is admitted. Meanwhile it is not one of the uploads that are
// copied.
func (u *upload) awaitAdmission(ctx context.Context) error {
	c := &u.splitter.config
	if !c.Bounds.held.TryAcquire(1) {
		return errHeld
	}
	u.slot.Release(1)
	u.slot = c.Bounds.held
	expiry := time.NewTimer(c.Hold)
	defer expiry.Stop()
	select {
	case <-u.admitted:
		return nil
	case <-expiry.C:
		return errUnnamed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follower reads the copy of an upload as it grows.
type follower struct {
	*upload
	ctx context.Context
	at  int64
}

// Read waits for the next bytes. It returns io.EOF when the registry has accepted the blob.
func (f *follower) Read(b []byte) (int, error) {
	for {
		f.mu.Lock()
		arrived, accepted, err, changed := f.arrived, f.accepted, f.err, f.changed
		f.mu.Unlock()
		switch {
		case err != nil:
			return 0, err
		case arrived > f.at:
			n, err := f.file.ReadAt(b[:min(int64(len(b)), arrived-f.at)], f.at)
			f.at += int64(n)
			f.read.Store(f.at)
			return n, err
		case accepted != "":
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			return 0, f.ctx.Err()
		}
	}
}
