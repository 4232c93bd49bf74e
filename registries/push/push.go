// Package push pushes blobs and manifests to a repository of an OCI registry, and finds and deletes
// manifests that refer to others. It knows nothing of logins: the caller says how the registry is
// reached.
package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// Destination is a name in a registry that an image is pushed to in parts. The registry shows the
// image once its manifest has the name.
type Destination struct {
	ref     name.Tag
	pusher  *remote.Pusher
	options []remote.Option
}

// New returns the destination with a name. options say how its registry is reached.
func New(ref name.Tag, options ...remote.Option) (*Destination, error) {
	p, err := remote.NewPusher(options...)
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", ref, err)
	}
	return &Destination{ref: ref, pusher: p, options: options}, nil
}

// Blob pushes a blob, unless the repository has it. open may be called again, after a failure.
func (d *Destination) Blob(ctx context.Context, blob ocispec.Descriptor, open func() (io.ReadCloser, error)) error {
	return d.upload(ctx, blob.Digest, upload{blob, open})
}

// Mount pushes a blob as Blob does. If from is another repository of the same registry, the
// registry is asked to take the blob from there.
func (d *Destination) Mount(ctx context.Context, blob ocispec.Descriptor, from name.Reference,
	open func() (io.ReadCloser, error)) error {
	if from.Context().RegistryStr() != d.ref.Context().RegistryStr() {
		return d.Blob(ctx, blob, open)
	}
	return d.upload(ctx, blob.Digest, &remote.MountableLayer{Layer: upload{blob, open}, Reference: from})
}

func (d *Destination) upload(ctx context.Context, id digest.Digest, l v1.Layer) error {
	if err := d.pusher.Upload(ctx, d.ref.Context(), l); err != nil {
		return fmt.Errorf("push blob %s to %s: %w", id, d.ref.Context(), err)
	}
	return nil
}

// uploadsAtOnce is how many blobs Blobs pushes at a time.
const uploadsAtOnce = 4

// Blob is a blob that is to be pushed. Open may be called again, after a failure.
type Blob struct {
	ocispec.Descriptor
	Open func() (io.ReadCloser, error)
}

// Bytes returns a blob that is in memory.
func Bytes(mediaType string, b []byte) Blob {
	return Blob{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))},
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }}
}

// Blobs pushes blobs, some at a time, and each once. push is Destination.Blob.
func Blobs(ctx context.Context, push func(context.Context, ocispec.Descriptor, func() (io.ReadCloser, error)) error,
	all []Blob) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(uploadsAtOnce)
	begun := map[digest.Digest]bool{}
	for _, b := range all {
		if begun[b.Digest] {
			continue
		}
		begun[b.Digest] = true
		group.Go(func() error { return push(ctx, b.Descriptor, b.Open) })
	}
	return group.Wait()
}

// Manifest pushes a manifest, by its digest.
func (d *Destination) Manifest(ctx context.Context, m ocispec.Descriptor, b []byte) error {
	return d.put(ctx, d.ref.Context().Digest(m.Digest.String()), m, b)
}

// Name pushes a manifest, and gives it the destination's name.
func (d *Destination) Name(ctx context.Context, m ocispec.Descriptor, b []byte) error {
	return d.put(ctx, d.ref, m, b)
}

func (d *Destination) put(ctx context.Context, ref name.Reference, m ocispec.Descriptor, b []byte) error {
	// Push would leave a manifest that the registry has out of the list that is kept under a tag.
	if err := d.pusher.Put(ctx, ref, manifest{m.MediaType, b}); err != nil {
		return fmt.Errorf("push the manifest of %s: %w", ref, err)
	}
	return nil
}

// Repository returns HOST[:PORT]/PATH of the destination.
func (d *Destination) Repository() string { return d.ref.Context().Name() }

// May returns an error unless client may push to a repository: it begins an upload, and cancels it.
func May(ctx context.Context, client *http.Client, to name.Repository) error {
	at := url.URL{Scheme: to.Scheme(), Host: to.RegistryStr(), Path: "/v2/" + to.RepositoryStr() + "/blobs/uploads/"}
	upload, err := send(ctx, client, http.MethodPost, &at, http.StatusAccepted)
	if err != nil {
		return fmt.Errorf("begin an upload to %s: %w", to, err)
	}
	if upload != nil {
		_, _ = send(ctx, client, http.MethodDelete, upload, http.StatusNoContent) // some registries cannot cancel
	}
	return nil
}

// send sends a request without a body, and returns the location in the answer.
func send(ctx context.Context, client *http.Client, method string, at *url.URL, want int) (*url.URL, error) {
	req, err := http.NewRequestWithContext(ctx, method, at.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := transport.CheckError(res, want); err != nil {
		return nil, err
	}
	location, err := res.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return nil, nil
	}
	return location, err
}

// ErrNoDeletion says that a registry does not delete manifests.
var ErrNoDeletion = errors.New("the registry does not delete manifests")

// Delete deletes a manifest that refers to subject. Where the registry has no referrers API, it
// takes the manifest out of the list that clients keep under a tag; if the registry then refuses to
// delete the manifest, only its bytes are left. Otherwise the error wraps ErrNoDeletion if the
// registry deletes none.
func (d *Destination) Delete(ctx context.Context, m, subject ocispec.Descriptor) error {
	repo := d.ref.Context()
	unlisted, err := d.unlist(ctx, repo.Tag(ListTag(subject.Digest)), m)
	if err != nil {
		return fmt.Errorf("take manifest %s of %s out of the list of what refers to %s: %w", m.Digest, repo,
			subject.Digest, err)
	}
	err = d.pusher.Delete(ctx, repo.Digest(m.Digest.String()))
	var failed *transport.Error
	switch {
	case errors.As(err, &failed) && (unlisted || failed.StatusCode == http.StatusNotFound):
		return nil // nobody finds it any more
	case failed != nil && failed.StatusCode == http.StatusMethodNotAllowed:
		err = fmt.Errorf("%w: %w", ErrNoDeletion, err)
	}
	if err != nil {
		return fmt.Errorf("delete manifest %s of %s: %w", m.Digest, repo, err)
	}
	return nil
}

// unlist takes a manifest out of a list that has a tag, and reports whether it has done that.
func (d *Destination) unlist(ctx context.Context, list name.Tag, m ocispec.Descriptor) (done bool, err error) {
	found, err := remote.Get(list, append(slices.Clip(d.options), remote.WithContext(ctx))...)
	var failed *transport.Error
	if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var all ocispec.Index
	if err := json.Unmarshal(found.Manifest, &all); err != nil {
		return false, fmt.Errorf("read the list %s: %w", list, err)
	}
	isIt := func(one ocispec.Descriptor) bool { return one.Digest == m.Digest }
	if !slices.ContainsFunc(all.Manifests, isIt) {
		return false, nil
	}
	all.Manifests = slices.DeleteFunc(all.Manifests, isIt)
	b, err := json.Marshal(all)
	if err == nil {
		err = d.put(ctx, list, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex}, b)
	}
	return err == nil, err
}

// upload is a blob, as the library wants it.
type upload struct {
	blob ocispec.Descriptor
	open func() (io.ReadCloser, error)
}

func (u upload) Digest() (v1.Hash, error)             { return v1.NewHash(u.blob.Digest.String()) }
func (u upload) DiffID() (v1.Hash, error)             { return u.Digest() }
func (u upload) Compressed() (io.ReadCloser, error)   { return u.open() }
func (u upload) Uncompressed() (io.ReadCloser, error) { return u.open() }
func (u upload) Size() (int64, error)                 { return u.blob.Size, nil }
func (u upload) MediaType() (types.MediaType, error)  { return types.MediaType(u.blob.MediaType), nil }

// manifest is a manifest, as the library wants it.
type manifest struct {
	mediaType string
	bytes     []byte
}

func (m manifest) RawManifest() ([]byte, error)        { return m.bytes, nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.MediaType(m.mediaType), nil }
