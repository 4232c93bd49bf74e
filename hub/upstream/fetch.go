package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/hub/rootdir"
)

const (
	// fetchBuffer is how many bytes are written to the file at a time.
	fetchBuffer = 256 << 10
	// A fetch asks Config.Room again after each roomBytes.
	roomBytes = 16 << 20
)

// fetch is a layer that is being fetched, or was fetched. When its last reader leaves, an
// incomplete fetch ends.
type fetch struct {
	reader *Reader
	of     *class
	from   place
	open   opener
	size   int64
	file   *os.File // has no name

	cancel context.CancelFunc
	expiry *time.Timer // forgets a kept layer; nil: the layer was never kept

	readers int // guarded by Bounds.mu

	mu      sync.Mutex    // guards the following
	arrived int64         // bytes
	whole   bool          // all bytes have arrived and were checked
	err     error         // why no more bytes arrive
	changed chan struct{} // closed and replaced at each change
}

var errSlow = errors.New("the first bytes do not arrive")

// opener opens the repository that a layer is read from.
type opener func(ctx context.Context) (*pull.Source, error)

// join returns a reader of a layer when its first bytes have arrived. It begins to fetch the layer,
// unless the layer was or is being fetched for another reader.
func (r *Reader) join(ctx context.Context, at place, size int64, of *class, open opener) (registry.Blob, error) {
	f, err := r.begin(at, size, of, open)
	if err != nil {
		return nil, err
	}
	b := &blob{fetch: f, ctx: ctx}
	first, cancel := ctx, context.CancelFunc(func() {})
	if of.patience > 0 {
		first, cancel = context.WithTimeoutCause(ctx, of.patience, errSlow)
	}
	defer cancel()
	if _, err := f.wait(first, 0, f.size); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// begin returns the fetch of a layer, and counts one more reader of it.
func (r *Reader) begin(at place, size int64, of *class, open opener) (*fetch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return nil, r.life.Err()
	}
	if f := r.share(at); f != nil {
		return f, nil
	}
	file, err := rootdir.OpenScratch(r.config.Dir)
	if err != nil {
		return nil, fmt.Errorf("fetch a layer: %w", err)
	}
	ctx, cancel := context.WithCancel(r.life)
	f := &fetch{reader: r, of: of, from: at, open: open, size: size, file: file, cancel: cancel, readers: 1,
		changed: make(chan struct{})}
	r.fetches[at] = f
	r.tasks.Go(func() { r.run(ctx, f) })
	return f, nil
}

// share returns the fetch of a layer that was or is being fetched, and counts one more reader of
// it. It returns nil if there is none. Bounds.mu is locked.
func (r *Reader) share(at place) *fetch {
	f := r.fetches[at]
	if f == nil {
		return nil
	}
	f.readers++
	if f.expiry != nil {
		f.expiry.Stop()
		f.of.take(f)
	}
	return f
}

// run fetches a layer.
func (r *Reader) run(ctx context.Context, f *fetch) {
	defer f.cancel()
	err := f.of.slots.Acquire(ctx, 1)
	if err == nil {
		err = r.copy(ctx, f)
		f.of.slots.Release(1)
	}
	f.update(func() { f.whole, f.err = err == nil, err })
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.fetches[f.from] == f { // the next reader tries again
		delete(r.fetches, f.from)
	}
	if f.readers == 0 && r.fetches[f.from] != f {
		_ = f.file.Close() // it has no name
	}
}

// errNoRoom marks errors of Config.Room. In explained, its text follows one about the layer.
var errNoRoom = errors.New("the hub has no room for it")

// room calls Config.Room. If there is no room, it deletes layers that are only kept. Its error
// wraps errNoRoom.
func (r *Reader) room() error {
	for {
		err := r.config.Room()
		if err == nil {
			return nil
		}
		if !r.evict() {
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
}

// copy reads a layer to its end, and checks it.
func (r *Reader) copy(ctx context.Context, f *fetch) error {
	if err := r.room(); err != nil {
		return err
	}
	source, err := f.open(ctx)
	if err != nil {
		return err
	}
	from := source.Blob(ctx, f.from.digest, f.size)
	defer from.Close()
	b := make([]byte, fetchBuffer)
	for at, checked := int64(0), int64(0); ; {
		if at-checked >= roomBytes {
			checked = at
			if err := r.room(); err != nil {
				return err
			}
		}
		n, err := from.Read(b)
		if _, writeErr := f.file.WriteAt(b[:min(int64(n), f.size-at)], at); writeErr != nil {
			return fmt.Errorf("fetch a layer: %w", writeErr)
		}
		at = min(at+int64(n), f.size)
		f.update(func() { f.arrived = at })
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// update changes the fields that readers wait for.
func (f *fetch) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// wait waits until bytes from an offset on can be read. It returns the end of these bytes, at most
// end. The last byte before end can be read only after the whole layer was checked.
func (f *fetch) wait(ctx context.Context, from, end int64) (int64, error) {
	for {
		f.mu.Lock()
		arrived, whole, err, changed := f.arrived, f.whole, f.err, f.changed
		f.mu.Unlock()
		if whole {
			return end, nil
		}
		if ready := min(arrived, end-1); ready > from {
			return ready, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// leave counts one reader less. A whole layer without readers is kept for a while, an incomplete
// one is not.
func (f *fetch) leave() {
	r := f.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.readers--; f.readers > 0 {
		return
	}
	f.mu.Lock()
	whole, failed := f.whole, f.err != nil
	f.mu.Unlock()
	switch {
	case failed:
		_ = f.file.Close() // it has no name
	case !whole: // run closes the file
		delete(r.fetches, f.from)
		f.cancel()
	case r.life.Err() != nil:
		f.forget()
	default:
		f.expiry = time.AfterFunc(f.of.keep, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if f.of.take(f) {
				f.forget()
			}
		})
		f.of.put(f)
	}
}

// forget deletes a layer that nobody reads. Bounds.mu is locked.
func (f *fetch) forget() {
	delete(f.reader.fetches, f.from)
	_ = f.file.Close() // it has no name
}

// blob is one reader's view of a layer.
type blob struct {
	*fetch
	ctx  context.Context // of the request
	once sync.Once
}

// Size implements registry.Blob.
func (b *blob) Size() int64 { return b.size }

// Section implements registry.Blob.
func (b *blob) Section(first, end int64) io.Reader { return &section{b, first, end} }

// Close implements registry.Blob.
func (b *blob) Close() error {
	b.once.Do(b.leave)
	return nil
}

type section struct {
	*blob
	at, end int64
}

// Read waits for the next bytes.
func (s *section) Read(p []byte) (int, error) {
	if s.at >= s.end {
		// The end is reported only after the check, also for an empty layer.
		if _, err := s.wait(s.ctx, s.at, s.end); err != nil {
			return 0, err
		}
		return 0, io.EOF
	}
	ready, err := s.wait(s.ctx, s.at, s.end)
	if err != nil {
		return 0, err
	}
	n, err := s.file.ReadAt(p[:min(int64(len(p)), ready-s.at)], s.at)
	s.at += int64(n)
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return n, err
}
