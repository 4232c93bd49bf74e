package attachment

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/store/repository"
)

// maxFound bounds the attached indexes of one image that are looked at.
const maxFound = 16

// Found is an attached index in a registry.
type Found struct {
	Artifact v1.Descriptor // the artifact's manifest
	Contents *attached.Contents
	By       ed25519.PublicKey // has signed the contents
	In       *repository.Repository
}

// Find returns the indexes of an image that one of the keys has signed, the newest version first:
// those that refer to the image in its repository from, and those under its chain's tag in other
// repositories. Without keys, it returns all that any key has signed. refused says why others were
// left out; err says that a registry could not be asked.
func Find(ctx context.Context, from *repository.Repository, image digest.Digest, chain string,
	others []*repository.Repository, keys []ed25519.PublicKey) (all []Found, refused, err error) {
	listed, err := Listed(ctx, from, image)
	if err != nil {
		return nil, nil, err
	}
	return Among(ctx, from, listed, image, chain, others, keys)
}

// Listed returns what refers to an image, and may be an index.
func Listed(ctx context.Context, from *repository.Repository, image digest.Digest) ([]v1.Descriptor, error) {
	return from.Referrers(ctx, image, attached.ArtifactType)
}

// Among is Find, for callers that have the list already.
func Among(ctx context.Context, from *repository.Repository, listed []v1.Descriptor, image digest.Digest,
	chain string, others []*repository.Repository, keys []ed25519.PublicKey) (all []Found, refused, err error) {
	look := func(in *repository.Repository, d v1.Descriptor, which string, subject digest.Digest) error {
		f, err := open(ctx, in, d, which, subject, keys)
		switch {
		case errors.As(err, new(*wrongError)):
			refused = errors.Join(refused, err)
		case err != nil:
			return err
		case f.Contents.Manifest != image || f.Contents.Chain != chain:
			refused = errors.Join(refused, fmt.Errorf("artifact %s is the index of manifest %s", which,
				f.Contents.Manifest))
		default:
			all = append(all, f)
		}
		return nil
	}
	for _, d := range listed[:min(len(listed), maxFound)] {
		if err := look(from, d, d.Digest.String(), image); err != nil {
			return nil, nil, err
		}
	}
	for _, in := range others {
		err := look(in, v1.Descriptor{}, attached.ChainTag(chain), "")
		if err != nil && !errors.Is(err, chunk.ErrNotFound) {
			return nil, nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b Found) int { return b.Contents.Version - a.Contents.Version })
	return all, refused, nil
}

// wrongError says that an artifact is not what it should be.
type wrongError struct{ error }

func (e *wrongError) Unwrap() error { return e.error }

// open reads an artifact's envelope. The error is a *wrongError if the artifact is not to be
// believed.
func open(ctx context.Context, in *repository.Repository, d v1.Descriptor, which string, subject digest.Digest,
	keys []ed25519.PublicKey) (f Found, err error) {
	m, err := in.Manifest(ctx, which)
	if err != nil {
		return f, err
	}
	wrong := func(err error) error { return &wrongError{fmt.Errorf("artifact %s in %s: %w", which, in, err)} }
	envelope, of, err := attached.EnvelopeOf(m.Bytes)
	switch {
	case err != nil:
		return f, wrong(err)
	case of != subject:
		return f, wrong(fmt.Errorf("it refers to %q", of))
	}
	b := envelope.Data
	if len(b) == 0 {
		if b, err = in.Blob(ctx, envelope, attached.MaxEnvelope); err != nil {
			return f, err
		}
	}
	if len(keys) == 0 {
		keys = attached.Signers(b)
	}
	f = Found{Artifact: d, In: in}
	f.Artifact.MediaType, f.Artifact.Digest, f.Artifact.Size = m.MediaType, m.Digest, int64(len(m.Bytes))
	if f.Contents, f.By, err = attached.Open(b, keys); err != nil {
		return f, wrong(err)
	}
	return f, nil
}
