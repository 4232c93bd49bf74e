package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/registries"
	"lighter/registries/push"
)

// ErrSource marks errors of the registry that an image is copied from.
var ErrSource = errors.New("read the source registry")

// ErrMediaType says that what a registry has is no manifest, by its media type.
var ErrMediaType = errors.New("its media type is not that of a manifest")

// smallTimeout bounds the time for a manifest, a config, or the size of a blob.
const smallTimeout = 60 * time.Second

// Source is an image in another registry.
type Source struct {
	// Transfers bounds the blobs that are read at a time from the registry. nil: no bound.
	Transfers *semaphore.Weighted

	ref       name.Reference
	client    *http.Client
	plainHTTP bool
	memory    Memory // may be nil
	configs   *configs
}

var _ oci.Reader = (*Source)(nil)

// ParseSource parses docker://HOST/REPO:TAG as skopeo does. imageName is the name that the image
// has in the hub by default. The error wraps report.ErrInvalid.
func ParseSource(text string) (ref name.Reference, imageName string, err error) {
	bare, ok := strings.CutPrefix(text, "docker://")
	if !ok {
		return nil, "", fmt.Errorf("%w: source %q: want docker://HOST/REPO:TAG", report.ErrInvalid, text)
	}
	named, err := reference.ParseNormalizedNamed(bare)
	if err == nil {
		imageName = reference.TagNameOnly(named).String()
		ref, err = name.ParseReference(imageName)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: source %q: %w", report.ErrInvalid, text, err)
	}
	return ref, imageName, nil
}

// ParseRepository parses HOST[:PORT]/PATH, as Repository returns it.
func ParseRepository(repository string) (name.Reference, error) {
	parsed, err := name.NewRepository(repository)
	if err != nil {
		return nil, err
	}
	return parsed.Tag(name.DefaultTag), nil
}

// NewSource returns the source that client reads. client logs in, and may do without TLS if
// plainHTTP is set.
func NewSource(ref name.Reference, client *http.Client, plainHTTP bool) *Source {
	return &Source{ref: ref, client: client, plainHTTP: plainHTTP, configs: newConfigs()}
}

// Repository returns HOST[:PORT]/PATH in containerd's form: Docker Hub is docker.io.
func (s *Source) Repository() string { return RepositoryOf(s.ref) }

// RepositoryOf returns the HOST[:PORT]/PATH of a reference, as Source.Repository.
func RepositoryOf(ref name.Reference) string { return registries.RepositoryOf(ref.Context()) }

// PlainHTTP reports whether the source may be read without TLS.
func (s *Source) PlainHTTP() bool { return s.plainHTTP }

// Blob reads a blob of size bytes. The reader continues after broken connections. At the end it
// returns an error instead of io.EOF if the received bytes have another size or digest. The caller
// closes it.
func (s *Source) Blob(ctx context.Context, blob string, size int64) io.ReadCloser {
	return checked(s.blob(ctx, blob, nil), blob, size)
}

func (s *Source) blob(ctx context.Context, digest string, onRead func(int)) *blobReader {
	return &blobReader{source: s, ctx: ctx, digest: digest, onRead: onRead, window: stallWindow, pauses: blobBackoff}
}

// Expand reads the manifest with that digest, or the manifest that the source's reference names if
// digest is empty. Below an index it reads the manifests for the wanted platforms. The error wraps
// ErrSource.
func (s *Source) Expand(ctx context.Context, digest string, platforms []string) (*oci.Members, error) {
	root, err := s.Manifest(ctx, cmp.Or(digest, s.ref.Identifier()))
	if err == nil {
		var members *oci.Members
		if members, err = oci.ExpandWanted(ctx, s, root, platforms); err == nil {
			return members, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrSource, err)
}

// get requests a blob or a manifest (kind) of the source's repository, from offset on.
func (s *Source) get(ctx context.Context, kind, which string, offset int64) (*http.Response, error) {
	return s.request(ctx, http.MethodGet, kind, which, offset)
}

func (s *Source) request(ctx context.Context, method, kind, which string, offset int64) (*http.Response, error) {
	repository := s.ref.Context()
	url := fmt.Sprintf("%s://%s/v2/%s/%s/%s",
		repository.Scheme(), repository.RegistryStr(), repository.RepositoryStr(), kind, which)
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		want = http.StatusPartialContent
	}
	if kind == "manifests" {
		req.Header.Set("Accept", strings.Join(oci.ManifestTypes, ", "))
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(res, want); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

// Manifest returns a manifest or index by tag or digest.
func (s *Source) Manifest(ctx context.Context, which string) (registry.Manifest, error) {
	if s.memory != nil && strings.Contains(which, ":") {
		if m, ok := s.memory.Manifest(s.Repository(), which); ok {
			return m, nil
		}
	}
	m, err := s.manifest(ctx, which)
	if err != nil {
		return m, fmt.Errorf("fetch the manifest of %s: %w", s.ref, err)
	}
	return m, nil
}

func (s *Source) manifest(ctx context.Context, which string) (registry.Manifest, error) {
	b, header, err := s.read(ctx, "manifests", which, registry.MaxManifest)
	if err != nil {
		return registry.Manifest{}, err
	}
	m := registry.Manifest{MediaType: mediaType(header), Digest: digest.FromBytes(b).String(), Bytes: b}
	if !slices.Contains(oci.ManifestTypes, m.MediaType) {
		return m, fmt.Errorf("the response has media type %q: %w", m.MediaType, ErrMediaType)
	}
	if strings.HasPrefix(which, "sha256:") && which != m.Digest {
		return m, fmt.Errorf("the response for %s has digest %s", which, m.Digest)
	}
	return m, nil
}

// mediaType returns the media type of an answer, without parameters.
func mediaType(header http.Header) string {
	text, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	return strings.TrimSpace(text)
}

// Referrers lists the manifests of a type that refer to subject (push.Referrers).
func (s *Source) Referrers(ctx context.Context, subject digest.Digest, artifactType string) ([]v1.Descriptor, error) {
	return push.Referrers(ctx, s.client, s.ref.Context(), subject, artifactType)
}

// Config returns the bytes of a config.
func (s *Source) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if s.memory != nil {
		if blob, ok := s.memory.Blob(ctx, s.Repository(), d.Digest.String()); ok {
			defer blob.Close()
			b, err := io.ReadAll(io.LimitReader(blob, d.Size))
			if err == nil && digest.FromBytes(b) == d.Digest {
				return b, nil
			}
		}
	}
	b, _, err := s.read(ctx, "blobs", d.Digest.String(), d.Size)
	if err == nil && digest.FromBytes(b) != d.Digest {
		err = fmt.Errorf("the response for %s has digest %s", d.Digest, digest.FromBytes(b))
	}
	if err != nil {
		return nil, fmt.Errorf("fetch the config of %s: %w", s.ref, err)
	}
	s.configs.add(d.Digest.String(), b)
	return b, nil
}

// read requests a blob or a manifest of at most limit bytes.
func (s *Source) read(ctx context.Context, kind, which string, limit int64) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	res, err := s.get(ctx, kind, which, 0)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("the response is longer than the limit of %d bytes", limit)
	}
	return b, res.Header, err
}
