package index

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// CheckMetadata refuses a metadata image, of h.MetadataSize bytes, that could
// confuse the kernel, which reads it unverified: one that does not hold what
// erofs.Image.Walk demands, or not the files that the header counts. Its digest
// only says that the hub has signed it.
//
// A million inodes take a fraction of a second and some megabytes (BenchmarkWalk
// in package erofs), and no image more than erofs.Image.Walk says: 145 MiB.
// Errors are chunk.InvalidError, r's or ctx's.
func (h *Header) CheckMetadata(ctx context.Context, r io.ReaderAt) error {
	stats, err := h.walk(ctx, r)
	if err == nil && (stats.Files != h.Files || stats.InlineBytes+stats.DeviceBytes != h.Bytes) {
		err = fmt.Errorf("%w: it has %d files of %d bytes, the index says %d of %d",
			erofs.ErrInvalid, stats.Files, stats.InlineBytes+stats.DeviceBytes, h.Files, h.Bytes)
	}
	if errors.Is(err, erofs.ErrInvalid) {
		return &chunk.InvalidError{What: "metadata image", Err: err}
	}
	return err
}

func (h *Header) walk(ctx context.Context, r io.ReaderAt) (erofs.Stats, error) {
	image, err := erofs.Open(r, h.MetadataSize)
	if err != nil {
		return erofs.Stats{}, err
	}
	return image.Walk(ctx, nil)
}
