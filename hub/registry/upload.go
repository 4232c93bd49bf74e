package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Upload is a blob on its way into the registry. It can be read while it grows,
// by any number of readers: so an image is taken in while it is copied.
type Upload struct {
	registry   *Registry
	repository string
	blob       string
	size       int64 // that it is to have

	mu      sync.Mutex // guards the following
	written int64
	id      string        // of the registry's upload, once it has begun
	ended   bool          // successfully or not
	err     error         // why not
	changed chan struct{} // closed at the next change
}

// NewUpload prepares the upload of a blob of size bytes. Nothing happens before
// Put.
func (r *Registry) NewUpload(repository, blob string, size int64) *Upload {
	return &Upload{registry: r, repository: repository, blob: blob, size: size, changed: make(chan struct{})}
}

func (u *Upload) change(fn func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	fn()
	close(u.changed)
	u.changed = make(chan struct{})
}

// Put keeps the bytes of from as the blob, if they have its digest and size. It
// may be called once; End says how it went.
func (u *Upload) Put(ctx context.Context, from io.Reader) error {
	repo, err := u.registry.repository(ctx, u.repository)
	if err != nil {
		return err
	}
	w, err := repo.Blobs(ctx).Create(ctx)
	if err != nil {
		return fmt.Errorf("keep blob %s: %w", u.blob, err)
	}
	if err := u.fill(ctx, w, from); err != nil {
		// The upload must go even when ctx has ended. Cancel leaves its files where
		// they are if Commit has refused them; no more than they is in its way.
		ctx := context.WithoutCancel(ctx)
		_ = w.Cancel(ctx)
		if err := u.registry.driver.Delete(ctx, path.Dir(uploadPath(u.repository, w.ID()))); err != nil && !errors.Is(known(err), ErrNotFound) {
			u.registry.log.Error("remove what came of a blob", "blob", u.blob, "cause", err)
		}
		return err
	}
	return nil
}

// End tells the readers that the blob is there, or with err why not. What has
// ended stays as it is.
func (u *Upload) End(err error) {
	u.change(func() {
		if !u.ended {
			u.ended, u.err = true, err
		}
	})
}

// copyBuffer is large, as each write of the registry costs a few calls, and
// larger than the registry's own buffer, so that what was written can be read.
const copyBuffer = 256 << 10

func (u *Upload) fill(ctx context.Context, w distribution.BlobWriter, from io.Reader) error {
	buf := make([]byte, copyBuffer)
	from = io.LimitReader(from, u.size+1)
	n := int64(0)
	for {
		k, err := ReadFull(from, buf)
		if k > 0 {
			if _, err := w.Write(buf[:k]); err != nil {
				return fmt.Errorf("keep blob %s: %w", u.blob, err)
			}
			n += int64(k)
			if k == len(buf) { // a shorter write may wait in a buffer
				u.change(func() { u.written, u.id = n, w.ID() })
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("blob %s: after %d of %d bytes: %w", u.blob, n, u.size, err)
		}
	}
	if n > u.size {
		return fmt.Errorf("blob %s is longer than the %d bytes that its descriptor says", u.blob, u.size)
	}
	if n < u.size {
		return fmt.Errorf("blob %s is cut short: %d of %d bytes", u.blob, n, u.size)
	}
	_, err := w.Commit(ctx, v1.Descriptor{Digest: digest.Digest(u.blob), Size: u.size})
	if invalid := (distribution.ErrBlobInvalidDigest{}); errors.As(err, &invalid) {
		return fmt.Errorf("blob %s does not have that digest: its bytes are corrupt", u.blob)
	}
	if err != nil {
		return fmt.Errorf("keep blob %s: %w", u.blob, err)
	}
	return nil
}

// ReadFull fills buf as far as from goes. Unlike io.ReadFull it leaves the error
// as it is: an end is not unexpected where blobs are read.
func ReadFull(from io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = from.Read(buf[n:])
		n += k
	}
	return n, err
}

// Wait waits until the upload has ended, and returns why if it failed.
func (u *Upload) Wait(ctx context.Context) error {
	for {
		u.mu.Lock()
		ended, err, changed := u.ended, u.err, u.changed
		u.mu.Unlock()
		if ended {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Open opens the blob for reading, from its first byte, before it is all there.
// The bytes are not verified before the reader has come to its end. The caller
// closes it.
func (u *Upload) Open(ctx context.Context) io.ReadCloser { return &growing{upload: u, ctx: ctx} }

// growing reads an upload as it grows.
type growing struct {
	upload *Upload
	ctx    context.Context // of the call that reads the blob
	file   io.ReadCloser
	offset int64
}

// uploadPath is where the registry keeps what has come of a blob
// (distribution's storage layout, version 2).
func uploadPath(repository, id string) string {
	return "/docker/registry/v2/repositories/" + repository + "/_uploads/" + id + "/data"
}

// Read waits until there is something to read.
func (g *growing) Read(b []byte) (int, error) {
	for {
		u := g.upload
		u.mu.Lock()
		written, id, ended, err, changed := u.written, u.id, u.ended, u.err, u.changed
		u.mu.Unlock()
		switch {
		case ended && err != nil:
			return 0, err
		case ended || written > g.offset:
			return g.read(b, written, id, ended)
		}
		select {
		case <-changed:
		case <-g.ctx.Done():
			return 0, g.ctx.Err()
		}
	}
}

func (g *growing) read(b []byte, written int64, id string, ended bool) (n int, err error) {
	if g.file == nil {
		if g.file, err = g.open(id, ended); err != nil {
			return 0, err
		}
	}
	if !ended {
		b = b[:min(int64(len(b)), written-g.offset)]
	}
	n, err = g.file.Read(b)
	g.offset += int64(n)
	if err == io.EOF && !ended {
		err = io.ErrUnexpectedEOF // what was written must be there
	}
	return n, err
}

// open opens the file of the upload, which stays the same when the registry
// moves it to its place.
func (g *growing) open(id string, ended bool) (io.ReadCloser, error) {
	u := g.upload
	if !ended {
		file, err := u.registry.driver.Reader(g.ctx, uploadPath(u.repository, id), 0)
		if err == nil || !errors.Is(known(err), ErrNotFound) {
			return file, err
		}
		// It was moved to its place a moment ago, which is as well.
		if err := u.Wait(g.ctx); err != nil {
			return nil, err
		}
	}
	return u.registry.OpenBlob(g.ctx, u.repository, u.blob)
}

// Close closes the file.
func (g *growing) Close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}
