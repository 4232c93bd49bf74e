package direct

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/resolver"
	"lighter/store/repository"
	"lighter/wire"
)

var _ resolver.Answerer = (*Images)(nil)

// A notDirect error says why an image is not answered here. It is a chunk.ErrNotFound.
type notDirect struct{ error }

func (e notDirect) Is(target error) bool { return target == chunk.ErrNotFound }
func (e notDirect) Unwrap() error        { return e.error }

var (
	errUnnamed    = notDirect{errors.New("the pull does not name its image")}
	errNotTrusted = notDirect{errors.New("the tables of its repository are not trusted")}
	errChain      = notDirect{errors.New("it is of no image that starts from its registry")}
)

// Answer implements resolver.Answerer. It makes the image's tree, unless that was done before: then
// it only makes sure that the registry lets this node read the image. The error wraps
// chunk.ErrNotFound if the image has to be pulled as usual, and says why.
func (m *Images) Answer(ctx context.Context, q resolver.Request) (*resolver.Answer, error) {
	name := q.Repository()
	switch {
	case q.Pulled == "" || name == "":
		return nil, errUnnamed
	case !m.trusts(name):
		return nil, errNotTrusted
	}
	// Pulls of the same image share one call, which does not end with the first of them.
	image, err := share(ctx, m, q.Pulled+" "+name, func(ctx context.Context) (*wire.Manifest, error) {
		began := time.Now()
		answer, err := m.answer(ctx, place{name, digest.Digest(q.Pulled)})
		if err != nil {
			m.config.Log.Info("an image does not start from its registry", "image", q.Reference, "err", err)
			return nil, err
		}
		m.config.Log.Info("an image starts from its registry", "image", q.Reference, "manifest", q.Pulled,
			"tree", answer.Statement.Tree.Short(), "duration", time.Since(began))
		return answer, nil
	})
	switch {
	case err != nil:
		return nil, err
	case q.Manifest == "": // under TrustChain
		return chainOf(image, q.Chain)
	}
	return &resolver.Answer{Image: image, Own: true}, nil
}

// share calls fn once for all callers that wait for the same key.
func share[T any](
	ctx context.Context, m *Images, key string, fn func(context.Context) (T, error),
) (result T, err error) {
	done := m.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTimeout)
		defer cancel()
		return fn(ctx)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return result, r.Err
		}
		return r.Val.(T), nil
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
}

// chainOf returns what is known of one chain of an image.
func chainOf(image *wire.Manifest, chain string) (*resolver.Answer, error) {
	var diffIDs []digest.Digest
	answer := &wire.Chain{Complete: true}
	parent, found := "", false
	for _, d := range image.DiffIDs {
		diffIDs = append(diffIDs, digest.Digest(d))
		l := wire.Link{Chain: identity.ChainID(diffIDs).String(), Parent: parent, DiffID: d}
		if parent = l.Chain; l.Chain == image.Image.Chain {
			l.Statement = image.Statement
		}
		switch {
		case found:
			answer.Above = append(answer.Above, l)
		case l.Chain == chain:
			answer.Link, found = l, true
		}
	}
	if !found {
		return nil, notDirect{fmt.Errorf("chain %s is not one of manifest %s", chain, image.Image.Manifest)}
	}
	return &resolver.Answer{Chain: answer, Own: true}, nil
}

// Tree implements resolver.Answerer. The tree of a lower chain is made when it is needed: when an
// image without tables has layers above it.
func (m *Images) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	n := 0
	tree, im, found := m.kept.find(func(im *image) bool { n = layersOf(im.DiffIDs, chain); return n > 0 })
	if !found {
		return nil, errChain
	}
	if n < len(im.DiffIDs) {
		var err error
		if tree, err = share(ctx, m, chain, func(ctx context.Context) (chunk.ID, error) {
			return m.makeLower(ctx, im.Places, n)
		}); err != nil {
			return nil, fmt.Errorf("make the tree of chain %s, of the lower layers of a direct image: %w", chain, err)
		}
	}
	s := index.Sign(m.key, chain, tree)
	return &s, nil
}

// layersOf returns how many of the lowest layers make a chain, or 0.
func layersOf(diffIDs []digest.Digest, chain string) int {
	for i, id := range identity.ChainIDs(slices.Clone(diffIDs)) {
		if id.String() == chain {
			return i + 1
		}
	}
	return 0
}

// makeLower makes the tree of the n lowest layers of an image.
func (m *Images) makeLower(ctx context.Context, places []place, n int) (tree chunk.ID, err error) {
	for _, p := range places {
		var from *repository.Repository
		var im *read
		if from, err = m.open(p.Repository); err != nil {
			continue
		}
		if im, err = readImage(ctx, from, p.Manifest); err != nil {
			continue
		}
		if n > len(im.layers) {
			return tree, fmt.Errorf("manifest %s has only %d layers", p.Manifest, len(im.layers))
		}
		im.layers, im.diffIDs, im.lower = im.layers[:n], im.diffIDs[:n], true
		if tree, err = m.make(ctx, from, im); err == nil {
			return tree, nil
		}
	}
	return tree, err
}

// Soon implements resolver.Answerer.
func (m *Images) Soon(context.Context, string) (*wire.Soon, error) { return nil, errChain }

// answer returns the statements about an image.
func (m *Images) answer(ctx context.Context, p place) (*wire.Manifest, error) {
	from, err := m.open(p.Repository)
	if err != nil {
		return nil, err
	}
	isIt := func(im *image) bool { return !im.Lower && slices.Contains(im.Places, p) }
	if tree, im, found := m.kept.find(isIt); found {
		return m.signed(p, im.DiffIDs, tree), from.Check(ctx, p.Manifest)
	}
	im, err := readImage(ctx, from, p.Manifest)
	if err != nil {
		return nil, err
	}
	tree, err := m.make(ctx, from, im)
	if err != nil {
		return nil, err
	}
	return m.signed(p, im.diffIDs, tree), nil
}

// signed returns the statements of this node about an image.
func (m *Images) signed(p place, diffIDs []digest.Digest, tree chunk.ID) *wire.Manifest {
	chain := identity.ChainID(slices.Clone(diffIDs)).String()
	keys := []ed25519.PrivateKey{m.key}
	statement := index.SignAll(keys, chain, tree)
	answer := &wire.Manifest{Image: index.SignImage(keys, p.Manifest.String(), chain, []string{p.Repository}),
		Statement: &statement}
	for _, d := range diffIDs {
		answer.DiffIDs = append(answer.DiffIDs, d.String())
	}
	return answer
}
