package resolver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

// manifestLabel is the digest of the manifest that is pulled, set like layersLabel.
// containerd has fetched that manifest from the repository of imageLabel, with the
// credentials of the pull. Where containerd is not told to set these labels, an image can
// bring them along in its manifest: they prove nothing then (lighter doctor finds that).
const manifestLabel = "containerd.io/snapshot/cri.manifest-digest"

// Manifests is what Images asks beside a Hub.
type Manifests interface {
	// Manifest says what a hub knows of the image with a manifest, or an error that wraps
	// chunk.ErrNotFound.
	Manifest(ctx context.Context, digest string) (*wire.Manifest, error)
}

// Images is a Resolver that claims a chain only for the pull of an image that a hub knows:
// of the same manifest, from a repository that has it. Who knows the digests of an image's
// layers can put them into the config of another one, and so name the image's chains; its
// manifest in its repository can be fetched only with the leave of the registry.
//
// A pull asks one question, about its manifest, whose answer is that for all its chains.
type Images struct {
	*Resolver
	manifests Manifests

	mu     sync.Mutex // guards what follows
	known  map[string]*known
	asking map[string]chan struct{} // by manifest: closed when the answer was learned
}

// known is what a hub has said of a manifest.
type known struct {
	at     time.Time
	err    error // why no chain is claimed for it
	image  *index.ImageStatement
	chains map[string]*link
}

// NewImages returns a resolver that claims what r does, and only for images that a hub
// knows.
func NewImages(r *Resolver, manifests Manifests) *Images {
	return &Images{Resolver: r, manifests: manifests, known: map[string]*known{}, asking: map[string]chan struct{}{}}
}

// Claim is that of Resolver, for the images that a hub knows.
func (i *Images) Claim(ctx context.Context, chain, parent string, labels map[string]string) (known bool, why string) {
	err := i.trees.Mountable()
	if err == nil {
		err = i.Allow(ctx, chain, parent, labels)
	}
	if err != nil {
		i.note(chain, parent, labels, false, err.Error())
		return false, err.Error()
	}
	return i.Resolver.Claim(ctx, chain, parent, labels)
}

var errUnnamed = errors.New("its client does not say of which manifest it is (containerd does with enable_remote_snapshot_annotations, " +
	"and CRI without disable_snapshot_annotations), and trust is image")

// Allow says why a pull has no claim to a chain.
func (i *Images) Allow(ctx context.Context, chain, parent string, labels map[string]string) error {
	manifest, repository := labels[manifestLabel], repositoryOf(labels[imageLabel])
	if digest.Digest(manifest).Validate() != nil || repository == "" {
		return errUnnamed
	}
	k, err := i.lookup(ctx, manifest, parent)
	if err != nil {
		return err
	}
	switch {
	case k.err != nil:
		return k.err
	case k.chains[chain] == nil:
		return fmt.Errorf("chain %s is not one of image manifest %s", chain, manifest)
	case !k.image.Allows(repository):
		return fmt.Errorf("the hub has this chain, but not from this repository: manifest %s is that of an image in %s, and is pulled from %s",
			manifest, cutOff(k.image.Repositories), repository)
	}
	return nil
}

// cutOff lists a few of many names.
func cutOff(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// repositoryOf returns HOST[:PORT]/PATH of a reference, or "" if it has no host: of such
// names a hub has its own.
func repositoryOf(reference string) string {
	repository, _, _ := strings.Cut(reference, "@")
	host, path, found := strings.Cut(repository, "/")
	if !found || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return ""
	}
	path, _, _ = strings.Cut(path, ":")
	return host + "/" + path
}

// lookup returns what a hub has said of a manifest, from memory if that will do.
func (i *Images) lookup(ctx context.Context, manifest, parent string) (*known, error) {
	for {
		k, answered := i.recall(manifest, parent)
		if k != nil {
			return k, nil
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// recall returns what is remembered, or tells when an answer will be there.
func (i *Images) recall(manifest, parent string) (*known, <-chan struct{}) {
	committed := parent != "" && i.holders(parent) > 0
	silence := i.silenceNow()
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	switch k := i.known[manifest]; {
	case k == nil:
	case k.err == nil && now.Before(k.at.Add(memory)):
		return k, nil
	case k.err != nil && !committed && parent != "" && now.Before(k.at.Add(memory)):
		// A pull that was refused is not asked about again, however long its layers take.
		k.at = now
		return k, nil
	case k.err != nil && now.Before(k.at.Add(negativeMemory)):
		return k, nil
	}
	if silence != nil && !committed {
		return &known{err: silence}, nil
	}
	answered := i.asking[manifest]
	if answered == nil {
		answered = make(chan struct{})
		i.asking[manifest] = answered
		go i.ask(manifest, answered)
	}
	return nil, answered
}

// ask asks the hub about a manifest, for all who wait for the answer.
func (i *Images) ask(manifest string, answered chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	var k *known
	err := insist(ctx, lookupTimeout, func() (err error) {
		k, err = i.answer(ctx, manifest)
		return err
	})
	switch {
	case errors.Is(err, chunk.ErrNotFound):
		err = fmt.Errorf("the hub knows no image with manifest %s, and trust is image (a hub of a version before knows none)", manifest)
	case err != nil:
		err = fmt.Errorf("the hub did not answer: %w", err)
		i.unanswered.Add(1)
		i.log.Warn("a look-up has no answer", "manifest", manifest, "cause", err)
	case k.err != nil:
		i.log.Warn("a statement of the hub is refused", "manifest", manifest, "cause", k.err)
	}
	if err != nil {
		k = &known{err: err}
	}
	i.learn(k.chains)
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.known) > maxManifests {
		clear(i.known)
	}
	k.at = time.Now()
	i.known[manifest] = k
	delete(i.asking, manifest)
	close(answered)
}

// maxManifests bounds the manifests that are remembered: each with the chains of an image,
// a thousand at most.
const maxManifests = 100

// maxLayers is how many layers an image has at most.
const maxLayers = 1000

// answer asks the hub and verifies what it says: that a key signed which chain and which
// repositories it is about, that the diffIDs make that chain, and the statement of its tree.
func (i *Images) answer(ctx context.Context, manifest string) (*known, error) {
	said, err := i.manifests.Manifest(ctx, manifest)
	if err != nil {
		return nil, err
	}
	keys, err := i.keys.Get(ctx)
	if err != nil {
		return nil, err
	}
	k := &known{image: &said.Image}
	if err := said.Image.Verify(manifest, keys); err != nil {
		k.err = fmt.Errorf("refused: %w", err)
		return k, nil
	}
	chains, err := chainsOf(said.DiffIDs)
	if err == nil && chains[len(chains)-1] != said.Image.Chain {
		err = fmt.Errorf("the diffIDs of manifest %s make chain %s, not %s", manifest, chains[len(chains)-1], said.Image.Chain)
	}
	if err != nil {
		k.err = fmt.Errorf("refused: %w", err)
		return k, nil
	}
	top := &link{at: time.Now()}
	top.verify(&wire.Link{Chain: said.Image.Chain, Statement: said.Statement}, keys)
	if top.own == nil {
		k.err = top.nothing()
		return k, nil
	}
	k.chains = map[string]*link{}
	for _, chain := range chains {
		below := &link{at: top.at}
		below.stand(top)
		k.chains[chain] = below
	}
	k.chains[said.Image.Chain] = top
	return k, nil
}

// chainsOf returns the chainIDs of layers, the lowest first.
func chainsOf(diffIDs []string) ([]string, error) {
	if len(diffIDs) == 0 || len(diffIDs) > maxLayers {
		return nil, fmt.Errorf("an image of %d layers: want 1 to %d", len(diffIDs), maxLayers)
	}
	var chains []digest.Digest
	for _, diffID := range diffIDs {
		chains = append(chains, digest.Digest(diffID))
	}
	var all []string
	for _, chain := range identity.ChainIDs(chains) {
		all = append(all, chain.String())
	}
	return all, nil
}

// learn has the resolver know the chains of an image without a question, beside what it
// knows of other images that have them.
func (r *Resolver) learn(chains map[string]*link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links) > maxRemembered {
		clear(r.links)
	}
	for chain, said := range chains {
		l := *said
		if old := r.links[chain]; old.err == nil && old.fresh(l.at, memory) {
			if l.own == nil {
				l.own = old.own
			}
			if l.images == 0 {
				l.images, l.above = old.images, old.above
			}
		}
		r.links[chain] = l
	}
}
