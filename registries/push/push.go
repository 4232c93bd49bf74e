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

// Manifest pushes a manifest, by its digest. If it refers to another one, and the registry has no
// referrers API, it is added to the list that clients keep under a tag. What the registry has lost
// is taken out of that list: some registries refuse a list of which they do not have all. An
// artifact in place of the list becomes a list first (Tagged).
func (d *Destination) Manifest(ctx context.Context, m ocispec.Descriptor, b []byte) error {
	var of struct{ Subject *ocispec.Descriptor }
	if err := json.Unmarshal(b, &of); err != nil {
		return fmt.Errorf("push manifest %s: %w", m.Digest, err)
	}
	var notListed error // registries with the referrers API need no list
	if of.Subject != nil {
		nothing := func(ocispec.Descriptor) (bool, error) { return false, nil }
		_, notListed = d.unlist(ctx, of.Subject.Digest, nothing)
	}
	ref := d.ref.Context().Digest(m.Digest.String())
	err := d.put(ctx, ref, m, b)
	var failed *transport.Error
	isRefused := errors.As(err, &failed) &&
		(failed.StatusCode == http.StatusBadRequest || failed.StatusCode == http.StatusNotFound)
	if isRefused && of.Subject != nil {
		if pruned, pruneErr := d.prune(ctx, of.Subject.Digest); pruneErr != nil {
			err = errors.Join(err, pruneErr)
		} else if pruned {
			err = d.put(ctx, ref, m, b)
		}
	}
	if err != nil {
		err = errors.Join(err, notListed)
	}
	return err
}

// maxPruned bounds the entries of a list that prune looks for in the registry.
const maxPruned = 64

// prune takes out of the list of what refers to subject what the registry has lost. It reports
// whether there was something.
func (d *Destination) prune(ctx context.Context, subject digest.Digest) (pruned bool, err error) {
	looks := 0
	return d.unlist(ctx, subject, func(one ocispec.Descriptor) (bool, error) {
		// The library's requests accept these media types.
		if one.MediaType != ocispec.MediaTypeImageManifest && one.MediaType != ocispec.MediaTypeImageIndex {
			return false, nil
		}
		if looks++; looks > maxPruned {
			return false, nil
		}
		_, err := remote.Head(d.ref.Context().Digest(one.Digest.String()), d.with(ctx)...)
		var failed *transport.Error
		if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
			return true, nil
		}
		return false, err
	})
}

// with returns the options for requests that end with ctx.
func (d *Destination) with(ctx context.Context) []remote.Option {
	return append(slices.Clip(d.options), remote.WithContext(ctx))
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
	unlisted, err := d.unlist(ctx, subject.Digest,
		func(one ocispec.Descriptor) (bool, error) { return one.Digest == m.Digest, nil })
	if err != nil {
		return err
	}
	return d.delete(ctx, m, unlisted)
}

// DeleteName deletes a manifest that has the destination's name, as Delete does. Some registries
// keep the name of what is deleted by its digest, and others delete no names.
func (d *Destination) DeleteName(ctx context.Context, m ocispec.Descriptor) error {
	err := d.pusher.Delete(ctx, d.ref)
	return d.delete(ctx, m, err == nil)
}

// delete deletes a manifest by its digest. unlisted says that nobody finds it without that.
func (d *Destination) delete(ctx context.Context, m ocispec.Descriptor, unlisted bool) error {
	repo := d.ref.Context()
	err := d.pusher.Delete(ctx, repo.Digest(m.Digest.String()))
	var failed *transport.Error
	switch {
	case errors.As(err, &failed) && (unlisted || failed.StatusCode == http.StatusNotFound):
		return nil
	case failed != nil && failed.StatusCode == http.StatusMethodNotAllowed:
		err = fmt.Errorf("%w: %w", ErrNoDeletion, err)
	}
	if err != nil {
		return fmt.Errorf("delete manifest %s of %s: %w", m.Digest, repo, err)
	}
	return nil
}

// unlist takes some manifests out of the list of what refers to subject, if the registry has a list
// under a tag, and makes a list of an artifact that is there instead (Tagged). It reports whether
// it has taken any out.
func (d *Destination) unlist(ctx context.Context, subject digest.Digest,
	some func(one ocispec.Descriptor) (bool, error)) (done bool, err error) {
	list := d.ref.Context().Tag(ListTag(subject))
	found, err := remote.Get(list, d.with(ctx)...)
	var failed *transport.Error
	if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
		return false, nil
	}
	var all ocispec.Index
	isList := false
	if err == nil {
		all, isList, err = Tagged(string(found.MediaType), found.Manifest, subject)
	}
	if err != nil {
		return false, fmt.Errorf("read the list %s of what refers to %s: %w", list, subject, err)
	}
	kept := []ocispec.Descriptor{}
	for _, one := range all.Manifests {
		goes, err := some(one)
		if err != nil {
			return false, fmt.Errorf("look for manifest %s of the list %s: %w", one.Digest, list, err)
		}
		if !goes {
			kept = append(kept, one)
		}
	}
	done = len(kept) < len(all.Manifests)
	if !done && (isList || len(kept) == 0) { // or it is something else that has this tag
		return false, nil
	}
	all.Manifests = kept
	b, err := json.Marshal(all)
	if err == nil {
		err = d.put(ctx, list, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex}, b)
	}
	if err != nil {
		return false, fmt.Errorf("change the list of what refers to %s: %w", subject, err)
	}
	return done, nil
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
