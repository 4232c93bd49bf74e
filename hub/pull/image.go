// Package pull reads images of other registries.
//
// Source is one image in another registry. Image reads each blob of a Source once, for ingestion and
// for the hub's own registry at the same time.
package pull

import (
	"context"
	"encoding/json"
	"errors"
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

// blobsAtOnce bounds the blobs of an image that Copy copies at once.
const blobsAtOnce = 4

// Image is an image of a source that gets a name in the hub's registry. Each blob is read from the
// registry if it is there, and otherwise from the source; then the registry stores it, too.
type Image struct {
	Members *oci.Members

	source *Source
	to     registry.Repository
	blobs  map[string]v1.Descriptor // of all members, by digest
}

// NewImage returns the image whose members a source has. It refuses blobs whose descriptors exceed
// maxBlob bytes: no more than a descriptor's size is ever read. The error wraps report.ErrInvalid.
func NewImage(from *Source, members *oci.Members, to registry.Repository, maxBlob int64) (*Image, error) {
	i := &Image{Members: members, source: from, to: to, blobs: map[string]v1.Descriptor{}}
	for _, m := range members.Manifests {
		if err := i.addBlobs(m.Manifest, maxBlob); err != nil {
			return nil, fmt.Errorf("%w: manifest %s: %w", report.ErrInvalid, m.Digest, err)
		}
	}
	return i, nil
}

func (i *Image) addBlobs(m registry.Manifest, limit int64) error {
	var manifest v1.Manifest
	if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
		return fmt.Errorf("parse it: %w", err)
	}
	for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
		if d.Digest == "" || oci.KindOf(d.MediaType) == oci.Foreign {
			continue
		}
		if err := d.Digest.Validate(); err != nil {
			return fmt.Errorf("blob %q: %w", d.Digest, err)
		}
		if d.Size < 0 || d.Size > limit {
			return fmt.Errorf("blob %s has %d bytes, the limit is %d", d.Digest, d.Size, limit)
		}
		i.blobs[d.Digest.String()] = d
	}
	return nil
}

// Manifest returns a manifest of the image.
func (i *Image) Manifest(ctx context.Context, digest string) (registry.Manifest, error) {
	if m, ok := i.Members.Find(digest); ok {
		return m, nil
	}
	return i.to.Manifest(ctx, digest)
}

// Config returns the bytes of a config.
func (i *Image) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if err := i.copyBlob(ctx, d, nil); err != nil {
		return nil, err
	}
	return i.to.Config(ctx, d)
}

// Open opens a blob, and stores it in the registry when it is read to its end. The caller closes it.
func (i *Image) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	d, known := i.blobs[digest]
	if !known {
		return i.to.Open(ctx, digest)
	}
	linked, err := i.to.Link(ctx, digest)
	if err != nil {
		return nil, err
	}
	if linked {
		return i.to.Open(ctx, digest)
	}
	return i.to.Store(ctx, digest, d.Size, &blobReader{source: i.source, ctx: ctx, digest: digest,
		window: stallWindow, pause: retryPause})
}

// Drop deletes a corrupt blob from the registry.
func (i *Image) Drop(ctx context.Context, digest string) error { return i.to.Drop(ctx, digest) }

// Copy copies the blobs that the registry does not have.
func (i *Image) Copy(ctx context.Context, progress *report.Progress) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, d := range i.blobs {
		group.Go(func() error { return i.copyBlob(ctx, d, progress) })
	}
	return group.Wait()
}

// copyBlob copies a blob, unless the registry has it. progress may be nil.
func (i *Image) copyBlob(ctx context.Context, d v1.Descriptor, progress *report.Progress) error {
	digest := d.Digest.String()
	if linked, err := i.to.Link(ctx, digest); linked || err != nil {
		return err
	}
	from := &blobReader{source: i.source, ctx: ctx, digest: digest, window: stallWindow, pause: retryPause}
	if progress != nil {
		from.onRead = progress.Step("copy", wire.ShortDigest(digest), d.Size).Add
	}
	stored, err := i.to.Store(ctx, digest, d.Size, from)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stored)
	return errors.Join(err, stored.Close())
}

// PutManifests stores the manifests, the innermost first, and points the tag to the image unless tag
// is empty.
func (i *Image) PutManifests(ctx context.Context, tag string) error {
	var manifests []registry.Manifest
	for _, m := range i.Members.Manifests {
		manifests = append(manifests, m.Manifest)
	}
	for _, m := range slices.Backward(i.Members.Indexes) {
		manifests = append(manifests, m)
	}
	for _, m := range manifests {
		if err := i.to.PutManifest(ctx, "", m); err != nil {
			return err
		}
	}
	return i.to.PutManifest(ctx, tag, i.Members.Root)
}
