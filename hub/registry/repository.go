package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Repository is one repository of the registry.
type Repository struct {
	registry *Registry
	name     string
}

// Repository returns a repository, whether it has anything yet or not.
func (r *Registry) Repository(name string) Repository { return Repository{r, name} }

// Name returns the repository's name.
func (r Repository) Name() string { return r.name }

func (r Repository) open(ctx context.Context) (distribution.Repository, error) {
	named, err := reference.WithName(r.name)
	if err != nil {
		return nil, fmt.Errorf("repository %q: %w", r.name, err)
	}
	return r.registry.namespace.Repository(ctx, named)
}

// Manifest is a manifest or an index as it was pushed.
type Manifest struct {
	MediaType string
	Digest    string
	Bytes     []byte
}

// Manifest returns a manifest or index by tag or digest. The error wraps ErrNotFound if it does not
// exist.
func (r Repository) Manifest(ctx context.Context, ref string) (Manifest, error) {
	m, err := r.manifest(ctx, ref)
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest %s of %s: %w", ref, r.name, ofStorage(mapNotFound(err)))
	}
	return m, nil
}

func (r Repository) manifest(ctx context.Context, ref string) (Manifest, error) {
	repo, err := r.open(ctx)
	if err != nil {
		return Manifest{}, err
	}
	id, err := digest.Parse(ref)
	if err != nil {
		desc, err := repo.Tags(ctx).Get(ctx, ref)
		if err != nil {
			return Manifest{}, err
		}
		id = desc.Digest
	}
	manifests, err := repo.Manifests(ctx)
	if err != nil {
		return Manifest{}, err
	}
	found, err := manifests.Get(ctx, id)
	if err != nil {
		return Manifest{}, err
	}
	mediaType, payload, err := found.Payload()
	return Manifest{MediaType: mediaType, Digest: id.String(), Bytes: payload}, err
}

// PutManifest stores a manifest, whose blobs exist here or upstream, and points the tag to it
// unless tag is empty.
func (r Repository) PutManifest(ctx context.Context, tag string, m Manifest) error {
	if err := r.putManifest(ctx, tag, m); err != nil {
		return fmt.Errorf("store manifest %s in %s: %w", m.Digest, r.name, ofStorage(err))
	}
	return nil
}

func (r Repository) putManifest(ctx context.Context, tag string, m Manifest) error {
	parsed, desc, err := distribution.UnmarshalManifest(m.MediaType, m.Bytes)
	if err != nil {
		return err
	}
	if desc.Digest.String() != m.Digest {
		return fmt.Errorf("the digest of its bytes is %s", desc.Digest)
	}
	repo, err := r.open(ctx)
	if err != nil {
		return err
	}
	if err := r.Touch(ctx, m); err != nil {
		return err
	}
	if tag != "" {
		if err := r.TouchTag(ctx, tag); err != nil {
			return err
		}
	}
	known, err := r.upstreamBlobs(ctx, m, r.registry.known)
	if err != nil {
		return err
	}
	manifests, err := repo.Manifests(withUpstream(ctx, known))
	if err != nil {
		return err
	}
	if _, err := manifests.Put(ctx, parsed); err != nil {
		return err
	}
	if tag == "" {
		return nil
	}
	return repo.Tags(ctx).Tag(ctx, tag, desc)
}

// Tag points a tag to a manifest that the repository has. Unlike PutManifest it touches nothing.
func (r Repository) Tag(ctx context.Context, tag string, m Manifest) error {
	repo, err := r.open(ctx)
	if err == nil {
		err = repo.Tags(ctx).Tag(ctx, tag, v1.Descriptor{Digest: digest.Digest(m.Digest)})
	}
	if err != nil {
		return fmt.Errorf("tag %s of %s: %w", tag, r.name, ofStorage(err))
	}
	return nil
}

// HasTag reports whether the repository has a tag, even if it lacks the manifest to which the tag
// points.
func (r Repository) HasTag(ctx context.Context, tag string) (bool, error) {
	repo, err := r.open(ctx)
	if err == nil {
		_, err = repo.Tags(ctx).Get(ctx, tag)
	}
	if err = mapNotFound(err); err != nil && !errors.Is(err, ErrNotFound) {
		return false, fmt.Errorf("tag %s of %s: %w", tag, r.name, ofStorage(err))
	}
	return err == nil, nil
}

// Open opens a blob, which is stored here or upstream. The caller closes it.
func (r Repository) Open(ctx context.Context, blob string) (io.ReadCloser, error) {
	repo, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	opened, err := repo.Blobs(ctx).Open(ctx, digest.Digest(blob))
	if errors.Is(mapNotFound(err), ErrNotFound) && r.registry.upstream != nil {
		body, err := r.registry.upstream.Open(ctx, r.name, blob)
		if errors.Is(err, ErrNotFound) && r.IsReleased(ctx, blob) {
			err = errReleased
		}
		if err != nil {
			return nil, fmt.Errorf("blob %s of %s: %w", blob, r.name, err)
		}
		return &whole{body.Section(0, body.Size()), body}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s of %s: %w", blob, r.name, unavailable(mapNotFound(err)))
	}
	return blobReader{opened}, nil
}

// blobReader is a blob whose errors are marked.
type blobReader struct{ io.ReadCloser }

func (b blobReader) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = unavailable(err)
	}
	return n, err
}

// UpstreamSize returns the size of a blob that the repository reads from another registry. It does
// not use the network. The error wraps ErrNotFound if there is no such registry.
func (r Repository) UpstreamSize(ctx context.Context, blob string) (int64, error) {
	return r.registry.known(ctx, r.name, blob)
}

// ErrReleased marks errors about layers that were deleted because of Registry.ReleasesLayers.
var ErrReleased = errors.New("the hub does not keep the layers of pushed images (keep_blobs)")

var errReleased = fmt.Errorf("%w: %w; nodes with the snapshotter do not need them", ErrNotFound, ErrReleased)

// IsReleased reports whether a layer of the repository was deleted because of
// Registry.ReleasesLayers: its link is left.
func (r Repository) IsReleased(ctx context.Context, blob string) bool {
	id, err := digest.Parse(blob)
	if err != nil || !r.registry.ReleasesLayers {
		return false
	}
	if stored, err := r.Stores(ctx, blob); err != nil || stored {
		return false
	}
	_, err = r.registry.driver.Stat(ctx,
		path.Join(repositoriesPath, r.name, "_layers", id.Algorithm().String(), id.Encoded(), "link"))
	return err == nil
}

// Link adds a stored blob, which another repository may have, to this repository. It reports
// whether the blob is stored.
func (r Repository) Link(ctx context.Context, blob string) (bool, error) {
	if err := r.registry.touch(ctx, blob); err != nil {
		return false, err
	}
	desc, err := r.registry.namespace.BlobStatter().Stat(ctx, digest.Digest(blob))
	if errors.Is(mapNotFound(err), ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("blob %s: %w", blob, unavailable(err))
	}
	repo, err := r.open(ctx)
	if err != nil {
		return false, err
	}
	if _, err := repo.Blobs(ctx).Stat(ctx, desc.Digest); err == nil {
		return true, nil
	} else if err = ofStorage(err); errors.Is(err, ErrUnavailable) {
		return false, fmt.Errorf("blob %s of %s: %w", blob, r.name, err)
	}
	from, err := reference.WithDigest(repo.Named(), desc.Digest)
	if err != nil {
		return false, err
	}
	w, err := repo.Blobs(ctx).Create(ctx, mount{from: from, stat: desc})
	if err == nil { // the library has begun an upload instead
		return false, errors.Join(fmt.Errorf("blob %s could not be linked to %s", blob, r.name), w.Cancel(ctx))
	}
	if mounted := (distribution.ErrBlobMounted{}); !errors.As(err, &mounted) {
		return false, fmt.Errorf("link blob %s to %s: %w", blob, r.name, ofStorage(err))
	}
	return true, nil
}

// mount is the library's option to link a blob, of whichever repository, with a known descriptor.
type mount struct {
	from reference.Canonical
	stat v1.Descriptor
}

func (m mount) Apply(options any) error {
	o, ok := options.(*distribution.CreateOptions)
	if !ok {
		return fmt.Errorf("unexpected options %T", options)
	}
	o.Mount.ShouldMount, o.Mount.From, o.Mount.Stat = true, m.from, &m.stat
	return nil
}

// Drop is Registry.DropCorrupt.
func (r Repository) Drop(ctx context.Context, blob string) error {
	_, err := r.registry.DropCorrupt(ctx, blob)
	return err
}

// Delete deletes a tag or a manifest. It is no error if the tag or manifest does not exist. A
// manifest's tags stay, so the caller deletes them first.
func (r Repository) Delete(ctx context.Context, ref string) error {
	if err := r.delete(ctx, ref); err != nil && !errors.Is(mapNotFound(err), ErrNotFound) {
		return fmt.Errorf("delete %s of %s: %w", ref, r.name, ofStorage(err))
	}
	return nil
}

func (r Repository) delete(ctx context.Context, ref string) error {
	repo, err := r.open(ctx)
	if err != nil {
		return err
	}
	id, err := digest.Parse(ref)
	if err != nil {
		return repo.Tags(ctx).Untag(ctx, ref)
	}
	manifests, err := repo.Manifests(ctx)
	if err != nil {
		return err
	}
	return manifests.Delete(ctx, id)
}

// Config returns the bytes of an image's config, whose digest it checks.
func (r Repository) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return r.read(ctx, d.Digest, MaxConfig)
}

// read returns the bytes of a blob of at most limit bytes, whose digest it checks.
func (r Repository) read(ctx context.Context, id digest.Digest, limit int64) ([]byte, error) {
	repo, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	blobs := repo.Blobs(ctx)
	desc, err := blobs.Stat(ctx, id)
	if err == nil && desc.Size > limit {
		err = fmt.Errorf("its %d bytes exceed the limit of %d", desc.Size, limit)
	}
	var b []byte
	if err == nil { // Open would allocate a large buffer
		b, err = blobs.Get(ctx, id)
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s of %s: %w", id, r.name, ofStorage(mapNotFound(err)))
	}
	if digest.FromBytes(b) != id {
		return nil, fmt.Errorf("blob %s is corrupt: the digest of its bytes is %s", id, digest.FromBytes(b))
	}
	return b, nil
}
