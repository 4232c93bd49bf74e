// Package pull copies images from other registries into the hub's registry. An image can be read
// while it is being copied.
//
// Source reads one image of another registry. Copy brings that image to a name, and Copies runs
// the copies: few at once, each as long as an image or a caller waits for it.
package pull

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// blobsAtOnce bounds the blobs of an image that are copied at once.
const blobsAtOnce = 4

type copyKey struct{ name, root, platforms string }

// Copy copies an image from a source to a name in the hub's registry. Its blobs can be read from
// the beginning, as they arrive. A nil Copy is one that has ended without an error.
type Copy struct {
	report.Progress
	Ref     wire.Ref // the name
	Members *oci.Members
	Source  *Source

	key     copyKey
	to      registry.Repository         // of Ref
	blobs   []v1.Descriptor             // of all members, each once
	uploads map[string]*registry.Upload // of the blobs, by digest

	ctx    context.Context // of the copying
	cancel context.CancelCauseFunc
	begun  chan struct{} // closed when the copying begins
	done   chan struct{} // closed after err is set
	err    error

	callers int // that have joined; guarded by Copies.mu
}

// addBlobs lists the blobs of the members. It refuses blobs whose descriptors exceed the limit: no
// more than a descriptor's size is ever read.
func (c *Copy) addBlobs(limit int64) error {
	for _, m := range c.Members.Manifests {
		var manifest v1.Manifest
		if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
			return fmt.Errorf("parse manifest %s: %w", m.Digest, err)
		}
		for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
			if d.Digest == "" || oci.KindOf(d.MediaType) == oci.Foreign || c.uploads[d.Digest.String()] != nil {
				continue
			}
			if err := d.Digest.Validate(); err != nil {
				return fmt.Errorf("manifest %s: blob %q: %w", m.Digest, d.Digest, err)
			}
			if d.Size < 0 || d.Size > limit {
				return fmt.Errorf("manifest %s: blob %s has %d bytes, the limit is %d",
					m.Digest, d.Digest, d.Size, limit)
			}
			c.blobs = append(c.blobs, d)
			c.uploads[d.Digest.String()] = c.to.NewUpload(d.Digest.String(), d.Size)
		}
	}
	return nil
}

// Brings reports whether the copy brings the manifest with that digest.
func (c *Copy) Brings(digest string) bool {
	_, found := c.Members.Find(digest)
	return found
}

// Ended reports whether the copy is over, with or without an error.
func (c *Copy) Ended() bool { return c == nil || isClosed(c.done) }

// Begun reports whether the copying has begun.
func (c *Copy) Begun() bool { return c == nil || isClosed(c.begun) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Done returns a channel that is closed at the end of the copy. Then Err says how it ended.
func (c *Copy) Done() <-chan struct{} { return c.done }

// Err returns why the copy failed, or nil. It is valid after the end of the copy.
func (c *Copy) Err() error { return c.err }

// Wait waits until the whole image is in the registry.
func (c *Copy) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Manifest returns a manifest of the copy.
func (c *Copy) Manifest(ctx context.Context, digest string) (registry.Manifest, error) {
	if m, ok := c.Members.Find(digest); ok {
		return m, nil
	}
	return c.to.Manifest(ctx, digest)
}

// Config returns the bytes of a config, when it has arrived.
func (c *Copy) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if upload := c.uploads[d.Digest.String()]; upload != nil {
		if err := upload.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return c.to.Config(ctx, d)
}

// Open opens a blob, which may still be arriving. The caller closes it.
func (c *Copy) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if upload := c.uploads[digest]; upload != nil {
		return upload.Open(ctx), nil
	}
	return c.to.Open(ctx, digest)
}

// Drop deletes a corrupt blob that the registry had before the copy. Blobs of the copy itself are
// verified as they arrive.
func (c *Copy) Drop(ctx context.Context, digest string) error {
	if c.uploads[digest] != nil {
		return nil
	}
	return c.to.Drop(ctx, digest)
}

// copyBlobs copies all blobs.
func (c *Copy) copyBlobs(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, d := range c.blobs {
		group.Go(func() error {
			upload := c.uploads[d.Digest.String()]
			err := c.copyBlob(groupCtx, d, upload)
			if groupCtx.Err() != nil {
				err = context.Cause(groupCtx) // another blob's error
			}
			upload.End(err)
			return err
		})
	}
	return group.Wait()
}

// copyBlob copies a blob, unless the registry has it.
func (c *Copy) copyBlob(ctx context.Context, d v1.Descriptor, upload *registry.Upload) error {
	digest := d.Digest.String()
	if linked, err := c.to.Link(ctx, digest); linked || err != nil {
		return err
	}
	from := &blobReader{source: c.Source, ctx: ctx, digest: digest,
		onRead: c.Step("copy", wire.ShortDigest(digest), d.Size).Add, window: stallWindow, pause: retryPause}
	defer from.Close()
	return upload.Put(ctx, from)
}

// PutManifests stores the manifests, the innermost first, and gives the name to the image. Its
// blobs have been copied.
func (c *Copy) PutManifests(ctx context.Context) error {
	var manifests []registry.Manifest
	for _, m := range c.Members.Manifests {
		manifests = append(manifests, m.Manifest)
	}
	for _, m := range slices.Backward(c.Members.Indexes) {
		manifests = append(manifests, m)
	}
	for _, m := range manifests {
		if err := c.to.PutManifest(ctx, "", m); err != nil {
			return err
		}
	}
	return c.to.PutManifest(ctx, c.Ref.Tag, c.Members.Root)
}
