package attachment

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/store/repository"
)

const (
	// maxFound bounds the attached indexes of one image that are looked at: those that claim the
	// newest versions.
	maxFound = 16
	// looksAtOnce is how many of them are looked at at a time.
	looksAtOnce = 8
)

// Found is an attached index in a registry.
type Found struct {
	Artifact v1.Descriptor // the artifact's manifest
	Contents *attached.Contents
	By       ed25519.PublicKey   // has signed the contents
	Signers  []ed25519.PublicKey // all that have; they need not be trusted
	In       *repository.Repository
}

// Trust says whose indexes are found.
type Trust struct {
	Keys    []ed25519.PublicKey // those that one of these keys has signed
	Anybody bool                // those that any key has signed: for showing them, and nothing else
}

// keys returns the keys that an envelope may be signed with.
func (t Trust) keys(envelope []byte) []ed25519.PublicKey {
	if t.Anybody {
		return attached.Signers(envelope)
	}
	return t.Keys
}

// Find returns the indexes of an image, the newest version first: those that refer to the image in
// its repository from, and those under its chain's tag in other repositories. refused says why
// others were left out; err says that a registry could not be asked.
func Find(ctx context.Context, from *repository.Repository, image digest.Digest, chain string,
	others []*repository.Repository, trust Trust) (all []Found, refused, err error) {
	listed, err := Listed(ctx, from, image)
	if err != nil {
		return nil, nil, err
	}
	return Among(ctx, from, listed, image, chain, others, trust)
}

// Listed returns what refers to an image, and may be an index.
func Listed(ctx context.Context, from *repository.Repository, image digest.Digest) ([]v1.Descriptor, error) {
	listed, err := from.Referrers(ctx, image, attached.ArtifactType)
	attached.NewestFirst(listed)
	return listed, err
}

// Among is Find, for callers that have the list already.
func Among(ctx context.Context, from *repository.Repository, listed []v1.Descriptor, image digest.Digest,
	chain string, others []*repository.Repository, trust Trust) (all []Found, refused, err error) {
	looks := make([]look, 0, maxFound+len(others))
	for _, d := range listed[:min(len(listed), maxFound)] {
		looks = append(looks, look{in: from, which: d.Digest.String(), subject: image,
			isGuess: d.ArtifactType == ""})
	}
	for _, in := range others {
		looks = append(looks, look{in: in, which: attached.ChainTag(chain)})
	}
	group := errgroup.Group{}
	group.SetLimit(looksAtOnce)
	for i := range looks {
		group.Go(func() error { looks[i].run(ctx, image, chain, trust); return nil })
	}
	_ = group.Wait() // each look has its own error
	var failed error
	for _, l := range looks { // in the order of the list, whichever has ended first
		if refused, failed = errors.Join(refused, l.refused), errors.Join(failed, l.failed); l.found != nil {
			all = append(all, *l.found)
		}
	}
	if len(all) == 0 && failed != nil {
		return nil, refused, failed
	}
	slices.SortStableFunc(all, func(a, b Found) int { return cmp.Compare(b.Contents.Version, a.Contents.Version) })
	return all, errors.Join(refused, failed), nil
}

// look is a look at what may be an image's index.
type look struct {
	in      *repository.Repository
	which   string        // the artifact's digest or tag
	subject digest.Digest // that the artifact must have
	isGuess bool          // the list does not say that it is an index

	found   *Found
	refused error // why it does not count
	failed  error // why it cannot be looked at now
}

// run sets what has come of the look.
func (l *look) run(ctx context.Context, image digest.Digest, chain string, trust Trust) {
	m, err := l.in.Manifest(ctx, l.which)
	f := &Found{In: l.in}
	if err == nil {
		f.Artifact = v1.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes))}
		a := attached.Artifact{Manifest: m.Bytes, Subject: l.subject, Image: image, Chain: chain,
			Envelope: func(d v1.Descriptor) ([]byte, error) { return l.in.Blob(ctx, d, attached.MaxEnvelope) }}
		f.Contents, f.By, err = a.Open(func(envelope []byte) []ed25519.PublicKey {
			f.Signers = attached.Signers(envelope)
			return trust.keys(envelope)
		})
	}
	switch {
	case err == nil:
		l.found = f
	case l.isGuess && errors.As(err, new(*attached.RefusedError)): // something else
	// A list may name what was deleted, and users who may push can put anything into it.
	case errors.As(err, new(*attached.RefusedError)), errors.As(err, new(*chunk.InvalidError)),
		errors.Is(err, chunk.ErrNotFound):
		l.refused = fmt.Errorf("artifact %s in %s: %w", l.which, l.in, err)
	default:
		l.failed = err
	}
}
