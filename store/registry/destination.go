package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Destination is a name in a registry that an image is pushed to in parts. The registry shows the
// image once its manifest has the name.
type Destination struct {
	ref     name.Tag
	pusher  *remote.Pusher
	options []remote.Option
}

// FindDestination returns the destination with a name, HOST/REPO[:TAG]. It has the credentials of
// this user's Docker configuration. The error wraps ErrNoImage if ref is no such name.
func FindDestination(ctx context.Context, ref string, plainHTTP bool) (*Destination, error) {
	parsed, err := parse(ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	tag, ok := parsed.(name.Tag)
	if !ok {
		return nil, fmt.Errorf("%q is %w to push to: want HOST/REPO[:TAG]", ref, ErrNoImage)
	}
	options := remoteOptions(ctx, onlyAllowed{plainHTTP, plainHTTPFlag, remote.DefaultTransport})
	p, err := remote.NewPusher(options...)
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", tag, err)
	}
	return &Destination{ref: tag, pusher: p, options: options}, nil
}

// Blob pushes a blob, unless the repository has it. open may be called again, after a failure.
func (d *Destination) Blob(ctx context.Context, blob ocispec.Descriptor, open func() (io.ReadCloser, error)) error {
	return d.upload(ctx, blob.Digest, upload{blob, open})
}

// Layer pushes a layer of an image as Blob does. If the image is in another repository of the same
// registry, the registry is asked to take the layer from there.
func (d *Destination) Layer(ctx context.Context, from *Original, n int, open func() (io.ReadCloser, error)) error {
	blob := from.Layers[n]
	source, ok := from.layers[n].(*remote.MountableLayer)
	if !ok || source.Reference.Context().RegistryStr() != d.ref.Context().RegistryStr() {
		return d.Blob(ctx, blob, open)
	}
	return d.upload(ctx, blob.Digest, &remote.MountableLayer{Layer: upload{blob, open}, Reference: source.Reference})
}

func (d *Destination) upload(ctx context.Context, id digest.Digest, l v1.Layer) error {
	if err := d.pusher.Upload(ctx, d.ref.Context(), l); err != nil {
		return fmt.Errorf("push blob %s to %s: %w", id, d.ref.Context(), err)
	}
	return nil
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
	if err := d.pusher.Push(ctx, ref, manifest{m.MediaType, b}); err != nil {
		return fmt.Errorf("push the manifest of %s: %w", ref, err)
	}
	return nil
}

// Repository returns HOST[:PORT]/PATH of the destination.
func (d *Destination) Repository() string { return d.ref.Context().Name() }

// ErrNoDeletion says that a registry does not delete manifests.
var ErrNoDeletion = errors.New("the registry does not delete manifests")

// Delete deletes a manifest that refers to subject. Where the registry has no referrers API, it
// takes the manifest out of the list that clients keep under a tag; if the registry then does not
// delete the manifest, only its bytes are left. Otherwise the error wraps ErrNoDeletion.
func (d *Destination) Delete(ctx context.Context, m, subject ocispec.Descriptor) error {
	repo := d.ref.Context()
	listed, err := d.unlist(ctx, repo.Tag(strings.Replace(subject.Digest.String(), ":", "-", 1)), m)
	if err == nil {
		err = d.pusher.Delete(ctx, repo.Digest(m.Digest.String()))
	}
	var failed *transport.Error
	if errors.As(err, &failed) && failed.StatusCode == http.StatusMethodNotAllowed {
		if listed {
			return nil
		}
		err = fmt.Errorf("%w: %w", ErrNoDeletion, err)
	}
	if err != nil {
		return fmt.Errorf("delete manifest %s of %s: %w", m.Digest, repo, err)
	}
	return nil
}

// unlist takes a manifest out of a list that has a tag, and reports whether the list had it.
func (d *Destination) unlist(ctx context.Context, list name.Tag, m ocispec.Descriptor) (listed bool, err error) {
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
	if err != nil {
		return false, err
	}
	return true, d.put(ctx, list, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex}, b)
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

// remoteOptions are how registries are reached: with the credentials of this user's Docker
// configuration.
func remoteOptions(ctx context.Context, transport onlyAllowed) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(transport)}
}
