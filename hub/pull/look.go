package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/wire"
)

// ErrGone means that a registry answers that it does not have an image.
var ErrGone = errors.New("the registry does not have it")

// At returns the source of another reference in the same repository. It shares the login.
func (s *Source) At(ref name.Reference) *Source {
	at := *s
	at.ref = ref
	return &at
}

// Digest returns the digest of what the source's reference names, with one HEAD request. If the
// answer has no digest, it reads the manifest. The error wraps ErrSource, and ErrGone if the
// registry does not have the image.
func (s *Source) Digest(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	found, err := s.askDigest(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: look at %s: %w", ErrSource, s.ref, markGone(err))
	}
	return found, nil
}

// markGone returns an error that wraps ErrGone if err is a registry's answer 404.
func markGone(err error) error {
	if failed := (*transport.Error)(nil); errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

func (s *Source) askDigest(ctx context.Context) (string, error) {
	header, _, err := s.head(ctx, "manifests", s.ref.Identifier())
	if err != nil {
		return "", err
	}
	if found := header.Get("Docker-Content-Digest"); wire.IsDigest(found) {
		return found, nil
	}
	m, err := s.manifest(ctx, s.ref.Identifier())
	return m.Digest, err
}
