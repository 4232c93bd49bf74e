package resolver

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// facts is what a verified answer says about one chain.
type facts struct {
	at  time.Time
	err error // why the chain is not claimed; nil: it may be claimed
	// complete says that the answer lists all chains above this chain that any answerer knows.
	complete bool
	image    *index.ImageStatement // where the image may be pulled from; nil: the lookup was about a chain alone
	own      *index.Statement      // the chain's verified statement; nil: the answer has none
	images   int                   // number of verified statements about chains above: images that contain this chain
	above    *index.Statement      // one of the verified statements about chains above; nil: there are none
	refused  error                 // why the statement about this chain, or about a chain above, is refused
	source   string                // what has answered, and why the sources before it have not, for users
	fromHub  bool                  // a hub has answered, so the index is to be fetched from it
}

func (f *facts) isFresh(now time.Time, ttl time.Duration) bool { return now.Before(f.at.Add(ttl)) }

// A missingError says that no answerer knows an image or a chain. It is a chunk.ErrNotFound.
type missingError string

func (e missingError) Error() string        { return string(e) }
func (e missingError) Is(target error) bool { return target == chunk.ErrNotFound }

const (
	errUnknown = missingError("no source knows this chain")
	errNoChain = missingError("the hub does not know this chain")
	errNoImage = missingError("it knows no image that has this chain") // after the name of what has answered
)

// A refusedError is why the statements of an answer are refused.
type refusedError struct{ cause error }

func (e refusedError) Error() string { return "refused: " + e.cause.Error() }
func (e refusedError) Unwrap() error { return e.cause }

// verify returns the facts of an answer by chain. It fails if the requested chain cannot be
// claimed.
func (a *Answer) verify(q Request, keys []ed25519.PublicKey) (map[string]*facts, error) {
	switch {
	case q.Manifest != "" && a.Image != nil:
		return verifyImage(a.Image, q.Manifest, keys)
	case q.Manifest == "" && a.Chain != nil:
		return verifyChain(a.Chain, q.Chain, keys)
	}
	return nil, errors.New("the answer is not about what was requested")
}

// verifyChain verifies each statement about a chain and the chains above it.
func verifyChain(answer *wire.Chain, chain string, keys []ed25519.PublicKey) (map[string]*facts, error) {
	if answer.Chain != chain {
		return nil, fmt.Errorf("the answer is about another chain: %q", answer.Chain)
	}
	above, complete := answer.Above, answer.Complete
	if len(above) > wire.MaxAbove {
		above, complete = above[:wire.MaxAbove], false
	}
	all := map[string]*facts{}
	now := time.Now()
	for _, l := range append([]wire.Link{answer.Link}, above...) {
		all[l.Chain] = &facts{at: now, complete: complete}
	}
	// above begins with the nearest chains. In reverse order, a chain's facts are complete before
	// they are added to those of the chain below.
	for i := len(above) - 1; i >= 0; i-- {
		f := all[above[i].Chain]
		f.verify(above[i].Chain, above[i].Statement, keys)
		if below := all[above[i].Parent]; below != nil {
			below.addAbove(f)
		}
	}
	f := all[chain]
	f.verify(chain, answer.Statement, keys)
	return all, f.claimable()
}

// verifyImage verifies that a key has signed the manifest's chain and repositories, that the
// diffIDs of the answer make this chain, and that a key has signed the statement of the chain's
// tree.
func verifyImage(answer *wire.Manifest, manifest string, keys []ed25519.PublicKey) (map[string]*facts, error) {
	image := &answer.Image
	if err := image.Verify(manifest, keys); err != nil {
		return nil, refusedError{err}
	}
	chains, err := chainsOf(answer.DiffIDs)
	if err != nil {
		return nil, refusedError{err}
	}
	if last := chains[len(chains)-1]; last != image.Chain {
		err := fmt.Errorf("the diffIDs of manifest %s make chain %s, not %s", manifest, last, image.Chain)
		return nil, refusedError{err}
	}
	top := &facts{at: time.Now(), image: image}
	top.verify(image.Chain, answer.Statement, keys)
	all := map[string]*facts{}
	for _, chain := range chains {
		below := &facts{at: top.at, image: image}
		below.addAbove(top)
		all[chain] = below
	}
	all[image.Chain] = top
	return all, top.claimable()
}

// verify verifies the statement about the chain itself, and adds it. statement may be nil.
func (f *facts) verify(chain string, statement *index.Statement, keys []ed25519.PublicKey) {
	if statement == nil {
		return
	}
	if err := statement.Verify(chain, keys); err != nil {
		f.refused = refusedError{err}
		return
	}
	f.own = statement
}

// addAbove adds to f the facts of a chain that is above f's chain.
func (f *facts) addAbove(above *facts) {
	f.images += above.images
	if above.above != nil {
		f.above = above.above
	}
	if above.own != nil {
		f.images++
		f.above = above.own
	}
	if f.refused == nil {
		f.refused = above.refused
	}
}

// claimable returns an error if no pull may claim the chain.
func (f *facts) claimable() error {
	switch {
	case f.own != nil || f.images > 0:
		return nil
	case f.refused != nil:
		return f.refused
	}
	return errNoImage
}

// chainsOf returns the chainIDs of layers, the lowest first.
func chainsOf(diffIDs []string) ([]string, error) {
	if len(diffIDs) == 0 || len(diffIDs) > maxLayers {
		return nil, fmt.Errorf("an image of %d layers: want 1 to %d", len(diffIDs), maxLayers)
	}
	var digests []digest.Digest
	for _, diffID := range diffIDs {
		digests = append(digests, digest.Digest(diffID))
	}
	var chains []string
	for _, chain := range identity.ChainIDs(digests) {
		chains = append(chains, chain.String())
	}
	return chains, nil
}
