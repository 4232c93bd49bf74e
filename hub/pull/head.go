package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Stat returns what the registry says of a manifest without sending it. The descriptor has no
// digest if the registry does not say it. The error wraps ErrSource.
func (s *Source) Stat(ctx context.Context, which string) (v1.Descriptor, error) {
	header, size, err := s.head(ctx, "manifests", which)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: manifest %s of %s: %w", ErrSource, which, s.Repository(), err)
	}
	return v1.Descriptor{MediaType: mediaType(header), Digest: digestOf(header), Size: size}, nil
}

// BlobSize returns the size of a blob in bytes, as the registry says it. The error wraps ErrSource.
func (s *Source) BlobSize(ctx context.Context, digest string) (int64, error) {
	_, size, err := s.head(ctx, "blobs", digest)
	if err == nil && size < 0 {
		err = errors.New("the answer has no length")
	}
	return size, s.blobError(digest, err)
}

// Has returns an error, which wraps ErrSource, unless the registry has a blob of size bytes.
func (s *Source) Has(ctx context.Context, digest string, size int64) error {
	_, found, err := s.head(ctx, "blobs", digest)
	if err == nil && found >= 0 && found != size {
		err = fmt.Errorf("it has %d bytes, the manifest says %d", found, size)
	}
	return s.blobError(digest, err)
}

func (s *Source) blobError(digest string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: blob %s of %s: %w", ErrSource, digest, s.Repository(), err)
}

// head asks for a blob or a manifest (kind) without its bytes. The size is negative if the registry
// does not say it.
func (s *Source) head(ctx context.Context, kind, which string) (header http.Header, size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	res, err := s.request(ctx, http.MethodHead, kind, which, 0)
	if err != nil {
		return nil, 0, err
	}
	res.Body.Close()
	return res.Header, res.ContentLength, nil
}

// digestOf returns the digest in an answer's header, or "" if it has none.
func digestOf(header http.Header) digest.Digest {
	id := digest.Digest(header.Get("Docker-Content-Digest"))
	if id.Validate() != nil {
		return ""
	}
	return id
}
