package index

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// CheckMetadata checks that a metadata image of h.MetadataSize bytes is safe to mount. The kernel
// trusts an image, so the image must pass erofs.Image.Walk, and have as many files and bytes as the
// header says. A correct digest is not enough: it only proves that the hub has signed the image.
//
// A million inodes take a fraction of a second and a few megabytes of memory (BenchmarkWalk in
// package erofs), and no image takes more than 145 MiB. The error is a *chunk.InvalidError, or
// comes from r or ctx.
func (h *Header) CheckMetadata(ctx context.Context, r io.ReaderAt) error {
	image, err := erofs.Open(r, h.MetadataSize)
	var stats erofs.Stats
	if err == nil {
		stats, err = image.Walk(ctx, nil)
	}
	if err == nil && (stats.Files != h.Files || stats.Bytes != h.Bytes) {
		err = fmt.Errorf("%w: it has %d files of %d bytes, the index says %d of %d",
			erofs.ErrInvalid, stats.Files, stats.Bytes, h.Files, h.Bytes)
	}
	return metadataError(err)
}

// Inodes returns how many inodes a metadata image of h.MetadataSize bytes says that it has: files,
// directories and others. CheckMetadata checks the number. Errors are as those of CheckMetadata.
func (h *Header) Inodes(r io.ReaderAt) (uint64, error) {
	image, err := erofs.Open(r, h.MetadataSize)
	if err != nil {
		return 0, metadataError(err)
	}
	return image.Inodes(), nil
}

// metadataError makes a *chunk.InvalidError of the error of an image that is invalid.
func metadataError(err error) error {
	if errors.Is(err, erofs.ErrInvalid) {
		return &chunk.InvalidError{What: "metadata image", Err: err}
	}
	return err
}
