// Package pull reads images of other registries.
//
// Source is one image in another registry. Image reads each blob of a Source once, for ingestion
// and for the hub's own registry at the same time.
package pull

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// blobsAtOnce bounds the blobs of an image that Copy copies at once.
const blobsAtOnce = 4

// Image is an image of a source that gets a name in the hub's registry. A blob that the hub's
// registry has is read from there. Any other blob is read from the source, and stored in the hub's
// registry at the same time, unless it is left upstream (LeaveLayers).
type Image struct {
	Members *oci.Members

	source *Source
	to     registry.Repository
	blobs  map[string]v1.Descriptor // of all members, by digest
	leave  bool                     // see LeaveLayers
	only   map[string]bool          // by digest: whether the blob is used only as a layer of wanted images

	mu     sync.Mutex      // guards the following
	proven map[string]bool // by digest: layers left upstream that were read or found there
}

// NewImage returns the image whose members a source has. It refuses blobs whose descriptors exceed
// maxBlob bytes: no more than a descriptor's size is ever read. The error wraps report.ErrInvalid.
func NewImage(from *Source, members *oci.Members, to registry.Repository, maxBlob int64) (*Image, error) {
	i := &Image{Members: members, source: from, to: to, blobs: map[string]v1.Descriptor{}, only: map[string]bool{},
		proven: map[string]bool{}}
	for _, m := range members.Manifests {
		if err := i.addBlobs(m, maxBlob); err != nil {
			return nil, fmt.Errorf("%w: manifest %s: %w", report.ErrInvalid, m.Digest, err)
		}
	}
	return i, nil
}

func (i *Image) addBlobs(m oci.Member, limit int64) error {
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
		_, known := i.blobs[d.Digest.String()]
		i.blobs[d.Digest.String()] = d
		isLayer := m.Wanted && oci.KindOf(d.MediaType) != oci.NotALayer
		i.only[d.Digest.String()] = isLayer && (!known || i.only[d.Digest.String()])
	}
	return nil
}

// Source returns where the image comes from.
func (i *Image) Source() *Source { return i.source }

// LeaveLayers makes Open and Copy leave Layers upstream: these layers are ingested and not stored.
// Other blobs are stored.
func (i *Image) LeaveLayers() { i.leave = true }

func (i *Image) isLeft(digest string) bool { return i.leave && i.only[digest] }

// Layers returns the blobs that are used only as layers of wanted images.
func (i *Image) Layers() (layers []v1.Descriptor) {
	for digest, only := range i.only {
		if only {
			layers = append(layers, i.blobs[digest])
		}
	}
	return layers
}

// Left returns the layers that were left upstream, after Copy.
func (i *Image) Left() (layers []v1.Descriptor) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for digest := range i.proven {
		layers = append(layers, i.blobs[digest])
	}
	return layers
}

func (i *Image) prove(digest string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.proven[digest] = true
}

// CanBeReadBy returns an error unless from has all Layers. from may have another login than the
// image's own source.
func (i *Image) CanBeReadBy(ctx context.Context, from *Source) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, d := range i.Layers() {
		group.Go(func() error { return from.Has(ctx, d.Digest.String(), d.Size) })
	}
	return group.Wait()
}

// Manifest returns a manifest of the image.
func (i *Image) Manifest(ctx context.Context, digest string) (registry.Manifest, error) {
	if m, ok := i.Members.Find(digest); ok {
		return m, nil
	}
	return i.to.Manifest(ctx, digest)
}

// Config stores a config in the hub's registry and returns its bytes.
func (i *Image) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if err := i.copyBlob(ctx, d, nil); err != nil {
		return nil, err
	}
	return i.to.Config(ctx, d)
}

// Open opens a blob. When the blob was read to its end, it is stored in the registry, unless it is
// left upstream. The caller closes it.
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
	if i.isLeft(digest) {
		return &provenReader{checked(i.source.fetch(ctx, digest, nil), digest, d.Size), i, digest}, nil
	}
	return i.to.Store(ctx, digest, d.Size, i.source.fetch(ctx, digest, nil))
}

// provenReader marks a layer as proven when all of it was read.
type provenReader struct {
	io.ReadCloser
	image  *Image
	digest string
}

func (p *provenReader) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if err == io.EOF {
		p.image.prove(p.digest)
	}
	return n, err
}

// find looks for a layer that is left upstream. It returns an error if the layer was not read from
// the source, and neither the source nor the hub's registry has it.
func (i *Image) find(ctx context.Context, d v1.Descriptor) error {
	digest := d.Digest.String()
	linked, err := i.to.Link(ctx, digest)
	if err != nil {
		return err
	}
	i.mu.Lock()
	proven := i.proven[digest]
	i.mu.Unlock()
	if proven {
		return nil
	}
	if err := i.source.Has(ctx, digest, d.Size); err != nil {
		if linked {
			return nil
		}
		return err
	}
	i.prove(digest)
	return nil
}

// Stores reports whether the hub's registry stores a blob, so that Open reads it from there.
func (i *Image) Stores(ctx context.Context, digest string) (bool, error) {
	return i.to.Link(ctx, digest)
}

// Drop deletes a blob from the registry if it is corrupt.
func (i *Image) Drop(ctx context.Context, digest string) error { return i.to.Drop(ctx, digest) }

// Copy copies the blobs that the hub's registry does not have. For a layer that is left upstream,
// it only checks that the source or the hub's registry has the layer.
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
	if i.isLeft(digest) {
		return i.find(ctx, d)
	}
	if linked, err := i.to.Link(ctx, digest); linked || err != nil {
		return err
	}
	var onRead func(int)
	if progress != nil {
		onRead = progress.Step("copy", wire.ShortDigest(digest), d.Size).Add
	}
	stored, err := i.to.Store(ctx, digest, d.Size, i.source.fetch(ctx, digest, onRead))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stored)
	return errors.Join(err, stored.Close())
}

// PutManifests stores the manifests, the innermost first, and points the tag to the image unless
// tag is empty.
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
