package direct

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/resolver"
	"lighter/store/repository"
	"lighter/wire"
)

// An answerer answers with the images of some formats.
type answerer struct {
	*Images
	words   []string
	formats []format
}

var _ resolver.Answerer = (*answerer)(nil)

// Formats returns the words for all formats, in the order in which they are looked for by default:
// attached (an attached index), tables (eStargz, zstd:chunked), soci.
func Formats() (words []string) {
	for _, f := range formats {
		words = append(words, f.word)
	}
	return words
}

// Answerer returns what answers with the images that have one of the formats, which are looked for
// in the order of their words. Another word counts for nothing.
func (m *Images) Answerer(words ...string) resolver.Answerer {
	a := &answerer{Images: m, words: words}
	for _, word := range words {
		if f := formatOf(word); f != nil {
			a.formats = append(a.formats, *f)
		}
	}
	return a
}

// formatOf returns the format with a word, or nil.
func formatOf(word string) *format {
	i := slices.IndexFunc(formats, func(f format) bool { return f.word == word })
	if i < 0 {
		return nil
	}
	return &formats[i]
}

// counting returns the formats that count for a repository.
func (m *answerer) counting(repository string) (some []format, err error) {
	var missing []string
	for _, f := range m.formats {
		if err := f.counts(m.Images, repository); err == nil {
			some = append(some, f)
		} else if !slices.Contains(missing, err.Error()) {
			missing = append(missing, err.Error())
		}
	}
	if len(some) == 0 {
		return nil, notDirect{errors.New(strings.Join(missing, "; "))}
	}
	return some, nil
}

// has reports whether an image that was made here has one of the formats.
func (m *answerer) has(im *image) bool {
	return slices.ContainsFunc(m.formats, func(f format) bool { return f.word == im.Format })
}

// Made returns from what a tree was made on this machine: the word of a format, and the
// repositories that have its layers, HOST[:PORT]/PATH. There are none if it was not made here.
func (m *Images) Made(tree chunk.ID) (word string, repositories []string) {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	t := m.kept.trees[tree]
	if t == nil {
		return "", nil
	}
	for _, p := range t.Places {
		if !slices.Contains(repositories, p.Repository) {
			repositories = append(repositories, p.Repository)
		}
	}
	return t.Format, repositories
}

// A notDirect error says why an image is not answered here. It is a chunk.ErrNotFound.
type notDirect struct{ error }

func (e notDirect) Is(target error) bool { return target == chunk.ErrNotFound }
func (e notDirect) Unwrap() error        { return e.error }

var (
	errUnnamed    = notDirect{errors.New("the pull does not name its image")}
	errUnverified = notDirect{errors.New("its tables count once this node has read its layers, in the background")}
	errChain      = notDirect{errors.New("it is of no image that starts from its registry")}
)

// Answer implements resolver.Answerer. It makes the image's tree, unless that was done before: then
// it only makes sure that the registry lets this node read the image. The error wraps
// chunk.ErrNotFound if the image has to be pulled as usual, and says why.
func (m *answerer) Answer(ctx context.Context, q resolver.Request) (*resolver.Answer, error) {
	name := q.Repository()
	if q.Pulled == "" || name == "" {
		return nil, errUnnamed
	}
	formats, err := m.counting(name)
	if err != nil {
		return nil, err
	}
	// Pulls of the same image share one call, which does not end with the first of them.
	key := fmt.Sprint(q.Pulled, " ", name, m.words)
	answer, err := share(ctx, m.Images, key, m.makeTime, func(ctx context.Context) (*resolver.Answer, error) {
		began := time.Now()
		p := place{Repository: name, Manifest: digest.Digest(q.Pulled)}
		answer, err := m.answer(ctx, q.Namespace, p, formats)
		if err != nil {
			m.config.Log.Info("an image does not start from its registry", "image", q.Reference, "err", err)
			return nil, err
		}
		m.config.Log.Info("an image starts from its registry", "image", q.Reference, "manifest", q.Pulled,
			"tree", answer.Image.Statement.Tree.Short(), "source", answer.Source, "duration", time.Since(began))
		return answer, nil
	})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("read image %s in its registry: %w", q.Reference, err)
	}
	if err == nil && q.Manifest == "" { // under TrustChain
		return chainOf(answer, q.Chain)
	}
	return answer, err
}

// share calls fn once for all callers that wait for the same key. fn has the time limit, also if no
// caller waits any more.
func share[T any](
	ctx context.Context, m *Images, key string, limit time.Duration, fn func(context.Context) (T, error),
) (result T, err error) {
	done := m.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
			fmt.Errorf("what is needed of it has not arrived within %s", limit))
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
func chainOf(of *resolver.Answer, chain string) (*resolver.Answer, error) {
	image := of.Image
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
	return &resolver.Answer{Chain: answer, Own: true, Source: of.Source}, nil
}

// Tree implements resolver.Answerer. The tree of a lower chain is made when it is needed: when an
// image without tables has layers above it.
func (m *answerer) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	n := 0
	tree, im, found := m.kept.find(func(im *image) bool {
		n = layersOf(im.DiffIDs, chain)
		return n > 0 && n == len(im.DiffIDs) && m.has(im) && m.isRight(im)
	})
	// Of an image with layers above. Without tables, the lower layers are read as a whole.
	for _, hasTables := range []bool{true, false} {
		if found {
			break
		}
		tree, im, found = m.kept.find(func(im *image) bool {
			n = layersOf(im.DiffIDs, chain)
			return n > 0 && m.has(im) && m.isRight(im) && (formatOf(im.Format).tables != nil) == hasTables
		})
	}
	if !found {
		return nil, errChain
	}
	if n < len(im.DiffIDs) {
		limit := m.makeTime
		if formatOf(im.Format).tables == nil {
			limit = surveyTime
		}
		var err error
		if tree, err = share(ctx, m.Images, chain, limit, func(ctx context.Context) (chunk.ID, error) {
			return m.makeLower(ctx, im, n)
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

// makeLower makes the tree of the n lowest layers of an image, in the image's format.
func (m *Images) makeLower(ctx context.Context, of image, n int) (tree chunk.ID, err error) {
	for _, p := range of.Places {
		tree, failed := m.makeLowerOf(ctx, p, of.Format, n)
		if failed == nil {
			return tree, nil
		}
		err = preferred(err, failed)
	}
	return tree, err
}

func (m *Images) makeLowerOf(ctx context.Context, p place, word string, n int) (tree chunk.ID, err error) {
	from, err := m.open(p.Repository)
	if err != nil {
		return tree, err
	}
	im, err := readImage(ctx, from, p.Manifest)
	if err != nil {
		return tree, err
	}
	if n > len(im.layers) {
		return tree, fmt.Errorf("manifest %s has only %d layers", p.Manifest, len(im.layers))
	}
	im.layers, im.diffIDs, im.lower = im.layers[:n], im.diffIDs[:n], true
	return m.make(ctx, from, im, []format{*formatOf(word)})
}

// Soon implements resolver.Answerer.
func (m *answerer) Soon(context.Context, string) (*wire.Soon, error) { return nil, errChain }

// answer returns the statements about an image, which is pulled in a namespace of containerd.
func (m *answerer) answer(ctx context.Context, namespace string, p place, formats []format) (*resolver.Answer, error) {
	from, err := m.open(p.Repository)
	if err != nil {
		return nil, err
	}
	isIt := func(im *image) bool {
		return slices.Contains(im.Places, p) && (im.By == "" || m.isRight(im)) &&
			slices.ContainsFunc(formats, func(f format) bool { return f.word == im.Format })
	}
	if tree, im, found := m.kept.find(isIt); found {
		im.Places = []place{p}
		if err := m.mayStart(im); err != nil {
			return nil, err
		}
		if im.Config == nil {
			err = m.learnConfig(ctx, from, p, tree)
		} else {
			err = from.Check(ctx, p.Manifest)
		}
		if err != nil {
			return nil, err
		}
		return m.signed(p, im.DiffIDs, tree), nil
	}
	lookTime := m.lookTime(formats)
	listed := list(ctx, from, p.Manifest, formats, lookTime) // meanwhile
	im, err := m.pulledImage(ctx, namespace, from, p.Manifest)
	if err != nil {
		return nil, err
	}
	im.listed, im.lookTime = listed, lookTime
	tree, err := m.make(ctx, from, im, formats)
	if err != nil {
		return nil, err
	}
	return m.signed(p, im.diffIDs, tree), nil
}

// learnConfig reads how an image starts. An earlier version has kept the image without that.
func (m *Images) learnConfig(ctx context.Context, from *repository.Repository, p place, tree chunk.ID) error {
	im, err := readImage(ctx, from, p.Manifest)
	if err != nil {
		return err
	}
	if err := m.kept.setConfig(tree, im.config); err != nil {
		m.config.Log.Warn("cannot keep the config of an image", "tree", tree.Short(), "err", err)
	}
	return nil
}

// signed returns the statements of this node about an image.
func (m *Images) signed(p place, diffIDs []digest.Digest, tree chunk.ID) *resolver.Answer {
	chain := identity.ChainID(slices.Clone(diffIDs)).String()
	keys := []ed25519.PrivateKey{m.key}
	statement := index.SignAll(keys, chain, tree)
	answer := &wire.Manifest{Image: index.SignImage(keys, p.Manifest.String(), chain, []string{p.Repository}),
		Statement: &statement}
	for _, d := range diffIDs {
		answer.DiffIDs = append(answer.DiffIDs, d.String())
	}
	source := "an index" // in a format that this version does not know
	word, _ := m.Made(tree)
	if f := formatOf(word); f != nil {
		source = "the " + f.name
	}
	return &resolver.Answer{Image: answer, Own: true, Source: source + " in " + p.Repository}
}
