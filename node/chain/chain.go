// Package chain promises an answer within about a second to the question that
// containerd asks for each layer of a pull: is this chain one of ours? It asks
// a hub at most once for each pull, remembers what it was told, and trusts only
// statements that a pinned key has signed.
//
// It refuses to let anybody wait for a hub that is silent: a hub that did not
// answer counts as one that knows nothing, until a pause is over.
//
// Risk: what Claim has confirmed cannot be taken back. So the tree of an image's
// top chain is on disk before Claim says yes; a chain below is only a claim,
// for which the hub makes a tree if somebody mounts it.
//
// On disk, below the node's root:
//
//	chains/HEX    the signed statement of a chain whose tree is here, as JSON
//	hub.keys      the pinned keys, if they were learned and not configured
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store/hub"
)

// Hub is what a Resolver asks.
type Hub interface {
	// Chain says what the hub knows of a chain and of those above it, or an
	// error that wraps chunk.ErrNotFound.
	Chain(ctx context.Context, chain string) (*hub.Chain, error)
	// Tree has the hub make the tree of a chain if need be.
	Tree(ctx context.Context, chain string) (*index.Statement, error)
}

// Trees is what a Resolver needs of the trees on this machine.
type Trees interface {
	Has(tree chunk.ID) bool
	Ensure(ctx context.Context, tree chunk.ID) error
	Mount(ctx context.Context, tree chunk.ID) (dir string, err error)
	Remove(tree chunk.ID) error
	Size(tree chunk.ID) (bytes, files int64)
}

const (
	// lookupTimeout is how long a pull waits for a hub.
	lookupTimeout = time.Second
	// silence is how long a hub that did not answer is not asked again.
	silence = 10 * time.Second
	// memory is how long an answer counts, and negativeMemory how long a "not
	// known" does: an image that was just added shall be lazy soon.
	memory         = time.Minute
	negativeMemory = 5 * time.Second
	// ensureTimeout bounds how long a pull waits for the index of its image.
	ensureTimeout = 30 * time.Second
	// maxRemembered bounds the chains that are remembered.
	maxRemembered = 20000
)

// Resolver answers for the chains of one node. It is safe for concurrent use.
type Resolver struct {
	hub   Hub
	trees Trees
	keys  *Keys
	dir   string
	log   *slog.Logger
	now   func() time.Time
	asked singleflight.Group

	mu       sync.Mutex // guards what follows
	links    map[string]remembered
	silentTo time.Time
	events   []Event

	// held serialises what changes which statements are on disk, and guards holds.
	held  sync.Mutex
	holds map[string]*hold
}

// remembered is what a hub said of a chain, and until when that counts.
type remembered struct {
	link  hub.Link
	known bool
	until time.Time
}

// New returns a resolver that keeps its statements below root.
func New(root string, h Hub, trees Trees, keys *Keys, log *slog.Logger) (*Resolver, error) {
	dir := filepath.Join(root, "chains")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the chains: %w", err)
	}
	return &Resolver{hub: h, trees: trees, keys: keys, dir: dir, log: log, now: time.Now,
		links: map[string]remembered{}, holds: map[string]*hold{}}, nil
}

// layersLabel is set by containerd when it is told to: the digests of the layer
// that is unpacked and of those above it, with commas between.
const layersLabel = "containerd.io/snapshot/cri.image-layers"

// imageLabel is the reference of the image that is pulled, set like layersLabel.
const imageLabel = "containerd.io/snapshot/cri.image-ref"

// Claim tells whether the chain is known, so that its layer need not be
// downloaded. For the top of an image its tree is on disk then.
func (r *Resolver) Claim(ctx context.Context, chain, parent string, labels map[string]string) bool {
	if s, err := r.statement(chain); err == nil && r.trees.Has(s.Tree) {
		r.wanted(chain)
		r.note(chain, labels, true, "its tree is on this machine")
		return true
	}
	link, err := r.lookup(ctx, chain, parent)
	if err != nil {
		r.note(chain, labels, false, err.Error())
		return false
	}
	if link.Statement == nil || moreAbove(labels) {
		r.note(chain, labels, true, "the hub knows it as part of an image")
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	if err := r.ensure(ctx, chain, link.Statement); err != nil {
		r.note(chain, labels, false, err.Error())
		return false
	}
	r.wanted(chain)
	r.note(chain, labels, true, "its tree was fetched")
	return true
}

// moreAbove tells whether the labels say that the image goes on above this
// layer. Then its index, which the hub has because another image ends here,
// need not be fetched.
func moreAbove(labels map[string]string) bool {
	return strings.Contains(labels[layersLabel], ",")
}

var errUnknown = errors.New("the hub does not know it")

// lookup says what the hub knows of a chain, from memory if that will do.
func (r *Resolver) lookup(ctx context.Context, chain, parent string) (hub.Link, error) {
	if link, err := r.recall(chain, parent); !errors.Is(err, errAsk) {
		return link, err
	}
	done := r.asked.DoChan(chain, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer cancel()
		answer, err := r.hub.Chain(ctx, chain)
		return nil, r.learn(chain, answer, err)
	})
	select {
	case result := <-done:
		if result.Err != nil {
			return hub.Link{}, result.Err
		}
		return r.recall(chain, parent)
	case <-ctx.Done():
		return hub.Link{}, context.Cause(ctx)
	}
}

// errAsk says that memory does not tell.
var errAsk = errors.New("not asked yet")

func (r *Resolver) recall(chain, parent string) (hub.Link, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if m, ok := r.links[chain]; ok && now.Before(m.until) {
		if !m.known {
			return hub.Link{}, errUnknown
		}
		return m.link, nil
	}
	if now.Before(r.silentTo) {
		return hub.Link{}, fmt.Errorf("the hub did not answer; it is asked again in %s", r.silentTo.Sub(now).Round(time.Second))
	}
	// The answer about a chain names all above it: what it does not name is
	// not known.
	if m, ok := r.links[aboveKey+parent]; ok && parent != "" && now.Before(m.until) {
		return hub.Link{}, errUnknown
	}
	return hub.Link{}, errAsk
}

// aboveKey marks in links that all chains above the one that follows are
// remembered.
const aboveKey = "above "

// learn remembers an answer.
func (r *Resolver) learn(chain string, answer *hub.Chain, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if len(r.links) > maxRemembered {
		clear(r.links)
	}
	switch {
	case errors.Is(err, chunk.ErrNotFound):
		r.links[chain] = remembered{until: now.Add(negativeMemory)}
		return nil
	case err != nil:
		r.silentTo = now.Add(silence)
		return fmt.Errorf("the hub did not answer: %w", err)
	case answer.Chain != chain:
		r.links[chain] = remembered{until: now.Add(negativeMemory)}
		return fmt.Errorf("the hub answers about chain %q", answer.Chain)
	}
	until := now.Add(memory)
	r.links[chain] = remembered{answer.Link, true, until}
	for _, link := range answer.Above {
		r.links[link.Chain] = remembered{link, true, until}
		if answer.Complete {
			r.links[aboveKey+link.Chain] = remembered{until: now.Add(negativeMemory)}
		}
	}
	if answer.Complete {
		r.links[aboveKey+chain] = remembered{until: now.Add(negativeMemory)}
	}
	return nil
}

// Mount mounts a chain's tree and returns where. A chain that was only claimed
// costs a question to the hub.
func (r *Resolver) Mount(ctx context.Context, chain string) (string, error) {
	s, err := r.statement(chain)
	if err != nil || !r.trees.Has(s.Tree) {
		if s, err = r.hub.Tree(ctx, chain); err != nil {
			return "", fmt.Errorf("the tree of chain %s is not on this machine and the hub does not give it: %w", chain, err)
		}
		if err := r.ensure(ctx, chain, s); err != nil {
			return "", err
		}
	}
	return r.trees.Mount(ctx, s.Tree)
}

// ensure verifies a statement and brings its tree here.
func (r *Resolver) ensure(ctx context.Context, chain string, s *index.Statement) error {
	keys, err := r.keys.Get(ctx)
	if err != nil {
		return err
	}
	if err := s.Verify(chain, keys); err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	if err := r.trees.Ensure(ctx, s.Tree); err != nil {
		return err
	}
	return r.save(s)
}
