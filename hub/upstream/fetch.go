package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/registry"
)

const (
	// fetchBuffer is how many bytes are written to the file at a time.
	fetchBuffer = 256 << 10
	// A fetch asks Config.Room again after each roomBytes.
	roomBytes = 16 << 20
	// keepTime is how long a layer stays on the disk after its last reader has gone.
	keepTime = time.Minute
)

// fetch is a layer that is being fetched, or was fetched. When its last reader leaves, an
// incomplete fetch ends.
type fetch struct {
	reader *Reader
	from   place
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

// join returns a reader of a layer when its first bytes have arrived. It begins to fetch the layer,
// unless the layer was or is being fetched for another reader.
func (r *Reader) join(ctx context.Context, u catalog.Upstream) (registry.Blob, error) {
	f, err := r.begin(u)
	if err != nil {
		return nil, err
	}
	b := &blob{fetch: f, ctx: ctx}
	if _, err := f.wait(ctx, 0, f.size); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// begin returns the fetch of a layer, and counts one more reader of it.
func (r *Reader) begin(u catalog.Upstream) (*fetch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return nil, r.life.Err()
	}
	at := place{u.Repository, u.Digest}
	if f := r.fetches[at]; f != nil {
		f.readers++
		if f.expiry != nil {
			f.expiry.Stop()
			r.kept = slices.DeleteFunc(r.kept, func(k *fetch) bool { return k == f })
		}
		return f, nil
	}
	file, err := os.CreateTemp(r.config.Dir, "upstream-*")
	if errors.Is(err, fs.ErrNotExist) { // somebody has deleted the scratch space
		if err = os.MkdirAll(r.config.Dir, 0o700); err == nil {
			file, err = os.CreateTemp(r.config.Dir, "upstream-*")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("fetch a layer: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("fetch a layer: %w", err), file.Close())
	}
	ctx, cancel := context.WithCancel(r.life)
	f := &fetch{reader: r, from: at, size: u.Size, file: file, cancel: cancel, readers: 1, changed: make(chan struct{})}
	r.fetches[at] = f
	r.tasks.Go(func() { r.run(ctx, f, u) })
	return f, nil
}

// run fetches a layer.
func (r *Reader) run(ctx context.Context, f *fetch, u catalog.Upstream) {
	defer f.cancel()
	err := r.slots.Acquire(ctx, 1)
	if err == nil {
		err = r.copy(ctx, f, u)
		r.slots.Release(1)
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

// room calls Config.Room. Its error wraps errNoRoom.
func (r *Reader) room() error {
	if err := r.config.Room(); err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	return nil
}

// copy reads a layer to its end, and checks it.
func (r *Reader) copy(ctx context.Context, f *fetch, u catalog.Upstream) error {
	if err := r.room(); err != nil {
		return err
	}
	source, err := r.Source(ctx, u.Repository, u.PlainHTTP)
	if err != nil {
		return err
	}
	from := source.Blob(ctx, u.Digest, u.Size)
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
		if _, writeErr := f.file.WriteAt(b[:min(int64(n), u.Size-at)], at); writeErr != nil {
			return fmt.Errorf("fetch a layer: %w", writeErr)
		}
		at = min(at+int64(n), u.Size)
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
			return 0, ctx.Err()
		}
	}
}

// leave counts one reader less. A whole layer without readers is kept for keepTime, an incomplete
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
		f.expiry = time.AfterFunc(keepTime, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if i := slices.Index(r.kept, f); i >= 0 {
				r.kept = slices.Delete(r.kept, i, i+1)
				f.forget()
			}
		})
		if r.kept = append(r.kept, f); len(r.kept) > maxKept {
			r.kept[0].forget()
			r.kept = slices.Delete(r.kept, 0, 1)
		}
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
