package fsck

import (
	"context"
	"errors"
	"iter"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/registry"
)

// dropLease is the lease of the deletion of a damaged blob, which reads the blob once more. Half of
// it bounds the deletion.
const dropLease = 10 * time.Minute

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

// dropBlob deletes a damaged blob from the registry: otherwise a client that pushes the blob would
// find that it exists. It reports false if the bytes are right, or cannot be read or deleted now.
func (c *Checker) dropBlob(ctx context.Context, digest string) (dropped bool, err error) {
	held, err := c.Catalog.Claims.IsHeld(ctx)
	if err != nil || held {
		return false, err
	}
	d, may, err := c.Catalog.Blobs.BeginAny(ctx, digest, dropLease)
	if err != nil || !may {
		return false, err
	}
	err = d.Do(ctx, func(ctx context.Context) error {
		// Clients wait from now on. One of them may have stored the right bytes just before.
		if _, err := c.Registry.VerifyBlob(ctx, digest); !errors.Is(err, registry.ErrCorrupt) {
			return nil
		}
		dropped = true
		return c.Registry.Drop(ctx, digest)
	})
	ending, end := catalog.Outlast(ctx)
	defer end()
	err = errors.Join(err, c.Catalog.Blobs.End(ending, d))
	return dropped && err == nil, err
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
