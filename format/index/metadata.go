package index

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// CheckMetadata checks a metadata image of h.MetadataSize bytes for what could confuse the kernel,
// which reads it unchecked: it must pass erofs.Image.Walk, and have the files that the header
// counts. A correct digest is not enough: it only says that the hub has signed the image.
//
// A million inodes take a fraction of a second and a few megabytes (BenchmarkWalk in package
// erofs), and no image takes more than 145 MiB. The error is a *chunk.InvalidError, or one of r or
// ctx.
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
