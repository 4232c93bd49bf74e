package fsck

import (
	"context"
	"errors"
	"iter"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/registry"
)

// readBlob reads a blob that the registry stores, and says what is wrong with it. It returns "" if
// nothing is, or if the blob is not stored. n is the number of bytes read.
func (c *Checker) readBlob(ctx context.Context, digest string) (why string, n int64, err error) {
	n, readErr := away.Retry(ctx, c.isAway, func() (int64, error) { return c.Registry.VerifyBlob(ctx, digest) })
	if readErr == nil || errors.Is(readErr, registry.ErrNotFound) {
		return "", n, nil
	}
	if err := c.transient(ctx, readErr); err != nil {
		return "", n, err
	}
	return readErr.Error(), n, nil
}

// blobPlace precedes the digest of a blob in the place of a scrub. It is after the keys of all
// objects.
const blobPlace = "registry/"

// blobs yields the digests of the blobs of ready images after a given one, in their order.
func (c *Checker) blobs(ctx context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		last := catalog.ImageBlob{Digest: after} // it comes once more
		for {
			batch, err := c.Catalog.Repairs.ImageBlobs(ctx, last, knownBatch)
			if err != nil {
				yield("", err)
				return
			}
			for _, b := range batch {
				if b.Digest != last.Digest && !yield(b.Digest, nil) {
					return
				}
				last = b
			}
			if len(batch) < knownBatch {
				return
			}
		}
	}
}
