package repository

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxManifest bounds a manifest, or a page of referrers, in bytes. Registries need not accept
// larger ones.
const maxManifest = 4 << 20

// Docker's media types of manifests.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Manifest is a manifest or an index.
type Manifest struct {
	MediaType string // as the registry says it
	Digest    digest.Digest
	Bytes     []byte
}

func manifestHeader() http.Header {
	return http.Header{"Accept": {strings.Join([]string{v1.MediaTypeImageManifest, v1.MediaTypeImageIndex,
		dockerManifest, dockerList}, ", ")}}
}

// Manifest returns a manifest by its digest, verified, or by its tag. A tag may name another
// manifest the next time. The error wraps ErrDenied, chunk.ErrNotFound, a *chunk.InvalidError or
// store.Unavailable as that of Range.
func (r *Repository) Manifest(ctx context.Context, which string) (*Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTime)
	defer cancel()
	m, err := r.fetchManifest(ctx, which)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s of %s: %w", which, r, err)
	}
	return m, nil
}

func (r *Repository) fetchManifest(ctx context.Context, which string) (*Manifest, error) {
	want, isDigest := digest.Digest(which), strings.Contains(which, ":")
	if isDigest {
		if err := want.Validate(); err != nil {
			return nil, err
		}
	}
	a, err := r.send(ctx, http.MethodGet, r.url("manifests", which), manifestHeader())
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	if err := a.mustBe(http.StatusOK); err != nil {
		return nil, err
	}
	b, err := a.readSmall()
	if err != nil {
		return nil, err
	}
	m := &Manifest{MediaType: a.mediaType(), Digest: digest.FromBytes(b), Bytes: b}
	if isDigest {
		if m.Digest = want.Algorithm().FromBytes(b); m.Digest != want {
			return nil, a.invalid(fmt.Errorf("its digest is %s", m.Digest))
		}
	}
	return m, nil
}

// mediaType returns the media type of an answer, without parameters.
func (a *answer) mediaType() string {
	text, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(text)
}

// readSmall reads an answer of maxManifest bytes at most. Its context bounds the time.
func (a *answer) readSmall() ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(a.Body, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("%s: after %d bytes: %w", a, len(b), err)
	}
	if len(b) > maxManifest {
		return nil, a.invalid(fmt.Errorf("it has more than the limit of %d bytes", maxManifest))
	}
	return b, nil
}
