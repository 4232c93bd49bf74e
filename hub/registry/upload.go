package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// uploadBuffer is the size of a write, in bytes. It is large, as each write costs a few system
// calls.
const uploadBuffer = 256 << 10

// upload is a blob that is stored while it is read.
type upload struct {
	ctx  context.Context // of the reader's life
	to   Repository
	blob string
	size int64 // expected, bytes
	from io.ReadCloser

	w       distribution.BlobWriter
	b       *bufio.Writer
	written int64
	ended   bool // stored or failed
}

// Store returns a reader of from, which has the bytes of a blob of that size. What is read is also
// stored. When the reader returns io.EOF, the blob is stored, and its digest and size are verified.
// The caller closes the reader. If it does so before io.EOF, nothing is stored.
func (r Repository) Store(ctx context.Context, blob string, size int64, from io.ReadCloser) (io.ReadCloser, error) {
	repo, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	w, err := repo.Blobs(ctx).Create(ctx)
	if err != nil {
		return nil, fmt.Errorf("store blob %s: %w", blob, unavailable(err))
	}
	return &upload{ctx: ctx, to: r, blob: blob, size: size, from: from, w: w,
		b: bufio.NewWriterSize(w, uploadBuffer)}, nil
}

// Read reads the next bytes, and stores them.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	if _, writeErr := u.b.Write(p[:n]); writeErr != nil {
		return 0, fmt.Errorf("store blob %s: %w", u.blob, unavailable(writeErr))
	}
	u.written += int64(n)
	switch {
	case u.written > u.size:
		return n, fmt.Errorf("blob %s is longer than the %d bytes of its descriptor", u.blob, u.size)
	case err == io.EOF && !u.ended:
		if err := u.commit(); err != nil {
			return n, err
		}
	case err != nil && err != io.EOF:
		err = fmt.Errorf("read blob %s: after %d of %d bytes: %w", u.blob, u.written, u.size, err)
	}
	return n, err
}

func (u *upload) commit() error {
	if u.written < u.size {
		return fmt.Errorf("blob %s is truncated: %d of %d bytes", u.blob, u.written, u.size)
	}
	err := u.b.Flush()
	if err == nil {
		err = u.to.registry.touch(u.ctx, u.blob)
	}
	if err == nil {
		_, err = u.w.Commit(u.ctx, v1.Descriptor{Digest: digest.Digest(u.blob), Size: u.size})
	}
	if invalid := (distribution.ErrBlobInvalidDigest{}); errors.As(err, &invalid) {
		return fmt.Errorf("blob %s is corrupt: its bytes have another digest", u.blob)
	}
	if err != nil {
		return fmt.Errorf("store blob %s: %w", u.blob, unavailable(err))
	}
	u.ended = true
	return nil
}

// Close deletes what was written, unless the blob is stored.
func (u *upload) Close() error {
	err := u.from.Close()
	if u.ended {
		return err
	}
	u.ended = true
	// The files are deleted even if ctx has ended. Cancel leaves them if Commit has refused them.
	ctx := context.WithoutCancel(u.ctx)
	_ = u.w.Cancel(ctx)
	deleteErr := u.to.registry.driver.Delete(ctx, path.Dir(uploadPath(u.to.name, u.w.ID())))
	if deleteErr != nil && !errors.Is(mapNotFound(deleteErr), ErrNotFound) {
		u.to.registry.log.Error("cannot delete a failed upload", "blob", u.blob, "err", deleteErr)
	}
	return err
}

// uploadPath returns the path of an upload's bytes in the library's storage layout, version 2.
func uploadPath(repository, id string) string {
	return repositoriesPath + "/" + repository + "/_uploads/" + id + "/data"
}

// EndUploads deletes the uploads that began longer ago than age. An error may also be about an
// upload that has ended meanwhile.
func (r *Registry) EndUploads(ctx context.Context, age time.Duration) error {
	if _, err := r.driver.Stat(ctx, repositoriesPath); errors.Is(mapNotFound(err), ErrNotFound) {
		return nil // PurgeUploads would return an error, which does not wrap the storage's
	}
	ended, errs := storage.PurgeUploads(ctx, r.driver, time.Now().Add(-age), true)
	if len(ended) > 0 {
		r.log.Info("deleted unfinished uploads", "count", len(ended))
	}
	var real []error
	for _, err := range errs {
		if !errors.Is(mapNotFound(err), ErrNotFound) {
			real = append(real, err)
		}
	}
	return errors.Join(real...)
}
