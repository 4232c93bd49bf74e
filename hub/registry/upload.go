package registry

import (
	"cmp"
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

// Upload is a blob that is being written to the registry. Any number of readers can read it
// meanwhile, so that an image is ingested while it is copied.
type Upload struct {
	to   Repository
	blob string
	size int64 // expected, bytes

	mu    sync.Mutex // guards the following
	state uploadState
}

// uploadState is the progress of an upload.
type uploadState struct {
	written int64
	id      string // of the registry's upload, once it has begun
	ended   bool   // with or without err
	err     error
	changed chan struct{} // closed at the next change
}

// NewUpload prepares the upload of a blob of size bytes. Put does it.
func (r Repository) NewUpload(blob string, size int64) *Upload {
	return &Upload{to: r, blob: blob, size: size, state: uploadState{changed: make(chan struct{})}}
}

func (u *Upload) change(fn func(*uploadState)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	fn(&u.state)
	close(u.state.changed)
	u.state.changed = make(chan struct{})
}

// await waits until the upload is in a suitable state, and returns that.
func (u *Upload) await(ctx context.Context, suits func(uploadState) bool) (uploadState, error) {
	for {
		u.mu.Lock()
		now := u.state
		u.mu.Unlock()
		if suits(now) {
			return now, nil
		}
		select {
		case <-now.changed:
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// Put stores the bytes of from as the blob, if they have its digest and size. It is called at most
// once. The caller then calls End.
func (u *Upload) Put(ctx context.Context, from io.Reader) error {
	repo, err := u.to.open(ctx)
	if err != nil {
		return err
	}
	w, err := repo.Blobs(ctx).Create(ctx)
	if err != nil {
		return fmt.Errorf("store blob %s: %w", u.blob, err)
	}
	if err := u.fill(ctx, w, from); err != nil {
		// The files of the upload are deleted even if ctx has ended. Cancel leaves them if Commit
		// has refused them.
		ctx := context.WithoutCancel(ctx)
		_ = w.Cancel(ctx)
		deleteErr := u.to.registry.driver.Delete(ctx, path.Dir(uploadPath(u.to.name, w.ID())))
		if deleteErr != nil && !errors.Is(mapNotFound(deleteErr), ErrNotFound) {
			u.to.registry.log.Error("delete a failed upload", "blob", u.blob, "err", deleteErr)
		}
		return err
	}
	return nil
}

// End tells the readers that the upload has ended, with or without an error. Only the first call
// has an effect.
func (u *Upload) End(err error) {
	u.change(func(s *uploadState) {
		if !s.ended {
			s.ended, s.err = true, err
		}
	})
}

// copyBuffer is large, as each write costs a few system calls. It is larger than the library's
// buffer, so that written bytes can be read at once.
const copyBuffer = 256 << 10

func (u *Upload) fill(ctx context.Context, w distribution.BlobWriter, from io.Reader) error {
	buf := make([]byte, copyBuffer)
	from = io.LimitReader(from, u.size+1)
	n := int64(0)
	for {
		k, err := ReadFull(from, buf)
		if k > 0 {
			if _, err := w.Write(buf[:k]); err != nil {
				return fmt.Errorf("store blob %s: %w", u.blob, err)
			}
			n += int64(k)
			if k == len(buf) { // a shorter write may stay in the library's buffer
				u.change(func(s *uploadState) { s.written, s.id = n, w.ID() })
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read blob %s: after %d of %d bytes: %w", u.blob, n, u.size, err)
		}
	}
	if n > u.size {
		return fmt.Errorf("blob %s is longer than the %d bytes of its descriptor", u.blob, u.size)
	}
	if n < u.size {
		return fmt.Errorf("blob %s is truncated: %d of %d bytes", u.blob, n, u.size)
	}
	_, err := w.Commit(ctx, v1.Descriptor{Digest: digest.Digest(u.blob), Size: u.size})
	if invalid := (distribution.ErrBlobInvalidDigest{}); errors.As(err, &invalid) {
		return fmt.Errorf("blob %s is corrupt: its bytes have another digest", u.blob)
	}
	if err != nil {
		return fmt.Errorf("store blob %s: %w", u.blob, err)
	}
	return nil
}

// ReadFull reads until buf is full or from fails. Unlike io.ReadFull it returns the reader's error
// as it is, also io.EOF after some bytes.
func ReadFull(from io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = from.Read(buf[n:])
		n += k
	}
	return n, err
}

// Wait waits for the end of the upload and returns its error.
func (u *Upload) Wait(ctx context.Context) error {
	s, err := u.await(ctx, func(s uploadState) bool { return s.ended })
	return cmp.Or(err, s.err)
}

// Open returns a reader of the blob that follows the upload. The bytes are verified only when the
// reader has returned io.EOF. The caller closes it.
func (u *Upload) Open(ctx context.Context) io.ReadCloser { return &uploadReader{upload: u, ctx: ctx} }

// uploadReader reads an upload while it is written.
type uploadReader struct {
	upload *Upload
	ctx    context.Context // of the reader's life
	file   io.ReadCloser
	offset int64
}

// uploadPath returns the path of an upload's bytes in the library's storage layout, version 2.
func uploadPath(repository, id string) string {
	return "/docker/registry/v2/repositories/" + repository + "/_uploads/" + id + "/data"
}

// Read waits for the next bytes.
func (r *uploadReader) Read(b []byte) (int, error) {
	s, err := r.upload.await(r.ctx, func(s uploadState) bool { return s.ended || s.written > r.offset })
	if err = cmp.Or(err, s.err); err != nil {
		return 0, err
	}
	if r.file == nil {
		if r.file, err = r.open(s); err != nil {
			return 0, err
		}
	}
	if !s.ended {
		b = b[:min(int64(len(b)), s.written-r.offset)]
	}
	n, err := r.file.Read(b)
	r.offset += int64(n)
	if err == io.EOF && !s.ended {
		err = io.ErrUnexpectedEOF // the file is shorter than what was written
	}
	return n, err
}

// open opens the upload's file. It stays open when the library renames it.
func (r *uploadReader) open(s uploadState) (io.ReadCloser, error) {
	u := r.upload
	if !s.ended {
		file, err := u.to.registry.driver.Reader(r.ctx, uploadPath(u.to.name, s.id), 0)
		if err == nil || !errors.Is(mapNotFound(err), ErrNotFound) {
			return file, err
		}
		// The library has just renamed it: the upload is ending.
		if err := u.Wait(r.ctx); err != nil {
			return nil, err
		}
	}
	return u.to.Open(r.ctx, u.blob)
}

// Close closes the file.
func (r *uploadReader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
