// Package resolver promises an answer to the question that containerd asks for each
// layer of a pull: is this chain one of ours? It asks a hub once for each pull
// (where layers are unpacked at the same time, at most once for each), remembers
// what it was told, and trusts only statements that a pinned key has signed.
//
// What no hub knows, and a hub that is silent or lies, costs a pull less than two
// seconds in all; then the pull goes on as if there were no hub. A hub that is not
// silent, and only slow, is waited for: what many nodes pull at the same time through
// one link takes that link much longer if they unpack it instead. It has ten seconds
// after each sign of it, and little more than a minute in all, not counting
// how long an index waits for its turn, of five seconds; so ten seconds is what one
// costs that answers, and whose index does not come. So a chain is claimed only if a
// verified statement is about it or about an image above it, and, as soon as it
// is clear which image that is, only once the image's index has begun to arrive
// and its header was verified. A hub that fails us is not asked again until a
// pause is over.
//
// Risk: what Claim has confirmed cannot be taken back. So the tree of an image's
// top chain is on disk before Claim says yes, which waits for it as long as bytes
// arrive. A chain below is only a claim, for which the hub makes a tree if
// somebody mounts it. Where several images stand on a chain, it is claimed before
// it is clear whose index must come: a hub whose statements are right and whose
// indexes are not makes such a pull fail, and plain if it is tried again at once.
//
// On disk, below the node's root:
//
//	chains/HEX    the signed statement of a chain whose tree is here, or on its way, as JSON
//	hub.keys      the pinned keys, if they were learned and not configured
package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

// Hub is what a Resolver asks: one hub or several. One that is silent fails again
// at once, until it was found to be back.
type Hub interface {
	// Chain says what the hub knows of a chain and of those above it, or an
	// error that wraps chunk.ErrNotFound.
	Chain(ctx context.Context, chain string) (*wire.Chain, error)
	// Tree has the hub make the tree of a chain if need be.
	Tree(ctx context.Context, chain string) (*index.Statement, error)
	// Heard tells when something came of a hub last, be it a connection; zero: never.
	Heard() time.Time
}

// Trees is what a Resolver needs of the trees on this machine.
type Trees interface {
	// Mountable says why no tree can be mounted on this machine, or nil.
	Mountable() error
	Has(tree chunk.ID) bool
	List() ([]chunk.ID, error)
	// Ensure brings a tree here, and has what its start needs come. It fails when
	// nothing arrives for a while, and calls begun as soon as what arrives is known to
	// be the tree's index. For a tree that is here it does not wait.
	Ensure(ctx context.Context, tree chunk.ID, begun func()) error
	Mount(ctx context.Context, tree chunk.ID) (dir string, err error)
	// Starts says that a container is about to start on a mounted tree.
	Starts(tree chunk.ID)
	Remove(tree chunk.ID) error
	Size(tree chunk.ID) (bytes, files int64)
}

// Resolver answers for the chains of one node. It is safe for concurrent use.
//
// Whoever needs a chain, a snapshot, a call to Claim or Mount, somebody who has
// mounted it, says so with Hold, and with Drop that it is over. With the last one
// the chain's tree goes.
type Resolver struct {
	hub   Hub
	trees Trees
	keys  *Keys
	dir   string
	log   *slog.Logger

	turns turns

	unanswered atomic.Int64

	mu       sync.Mutex // guards what follows
	links    map[string]link
	asking   map[string]chan struct{} // by chain: closed when the answer was learned
	fetches  map[chunk.ID]*fetch
	silentTo time.Time
	silence  error // why the hub is not asked

	held    sync.Mutex // guards what follows, and the statements on disk
	uses    map[string]*use
	leaving map[chunk.ID]bool // trees that are being removed
	writing map[string]bool   // chains whose statement is being written
	left    *sync.Cond        // one of these has ended
}

// New returns a resolver with the statements that are below root. One that cannot be
// verified, whatever the reason, is refused: nothing new is claimed by it, and it is asked
// for again (RenewStatements); but what holds its chain keeps the tree.
func New(root string, h Hub, trees Trees, keys *Keys, log *slog.Logger) (*Resolver, error) {
	dir := filepath.Join(root, "chains")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the chains: %w", err)
	}
	r := &Resolver{hub: h, trees: trees, keys: keys, dir: dir, log: log,
		links: map[string]link{}, asking: map[string]chan struct{}{}, fetches: map[chunk.ID]*fetch{},
		turns: newTurns(), uses: map[string]*use{}, leaving: map[chunk.ID]bool{}, writing: map[string]bool{}}
	r.left = sync.NewCond(&r.held)
	return r, r.load()
}

// layersLabel is set by containerd when it is told to: the digests of the layer
// that is unpacked and of those above it, with commas between.
const layersLabel = "containerd.io/snapshot/cri.image-layers"

// moreAbove tells whether the labels say that the image goes on above this
// layer. Then its index, which the hub has because another image ends here,
// need not be fetched.
func moreAbove(labels map[string]string) bool {
	return strings.Contains(labels[layersLabel], ",")
}

// Claim tells whether the chain is known, so that its layer need not be
// downloaded, and why, or why not, for people. For the top of an image its tree is
// on disk then. The caller holds the chain.
func (r *Resolver) Claim(ctx context.Context, chain, parent string, labels map[string]string) (known bool, why string) {
	why, err := r.claim(ctx, chain, parent, moreAbove(labels))
	if err != nil {
		why = err.Error()
		if cause := r.refusedFor(chain); cause != nil {
			why = fmt.Sprintf("its statement on this machine is refused: %v; and %s", cause, why)
		}
	}
	r.note(chain, parent, labels, err == nil, why)
	return err == nil, why
}

// Allow lets every pull have every chain.
func (*Resolver) Allow(context.Context, string, string, map[string]string) error { return nil }

func (r *Resolver) claim(ctx context.Context, chain, parent string, more bool) (why string, err error) {
	if err := r.trees.Mountable(); err != nil {
		return "", err
	}
	if r.isHere(chain) {
		if !more { // a start is near
			err = r.trees.Ensure(ctx, r.tree(chain), func() {})
		}
		return "its tree is on this machine", err
	}
	// Once the chain below was claimed, saying no would not help: without a hub
	// no layer can be put on it.
	committed := parent != "" && r.holders(parent) > 0
	l, err := r.lookup(ctx, chain, parent, committed)
	switch {
	case err != nil:
		return "", err
	case l.own != nil && !(more && l.images > 0):
		why, err = "its tree was fetched", r.ensure(ctx, l.own, committed)
	case l.images == 0:
		err = l.nothing()
	case l.images == 1 && !r.trees.Has(l.above.Tree) && !r.isHere(l.above.Chain):
		err = r.fetch(l.above, committed).waitBegun(ctx)
		fallthrough
	default:
		why = "the hub knows it as part of an image"
	}
	if err != nil && ctx.Err() == nil {
		r.remember(chain, err)
	}
	return why, err
}

// treeTimeout bounds how long a hub may take to make a tree.
const treeTimeout = 15 * time.Second

// Mount mounts a chain's tree and returns where. A chain that was only claimed
// costs a question to the hub, and the wait for its index: as long as bytes
// arrive, but five minutes in all at most. The caller holds the chain. The tree of one
// whose statement is refused is mounted as long as it is known which it is.
func (r *Resolver) Mount(ctx context.Context, chain string) (string, error) {
	tree := r.tree(chain)
	if tree.IsZero() || !r.trees.Has(tree) {
		s, err := r.askTree(ctx, chain)
		if err == nil {
			tree, err = s.Tree, r.ensure(ctx, s, true)
		} else {
			err = fmt.Errorf("the tree of chain %s is not on this machine and the hub does not give it: %w", chain, err)
		}
		if cause := r.refusedFor(chain); err != nil && cause != nil {
			err = fmt.Errorf("the statement of chain %s on this machine is refused: %v; and %w", chain, cause, err)
		}
		if err != nil {
			return "", err
		}
	}
	return r.trees.Mount(ctx, tree)
}

// Starts says that a container is about to start on a chain that was mounted.
func (r *Resolver) Starts(chain string) {
	if tree := r.tree(chain); !tree.IsZero() {
		r.trees.Starts(tree)
	}
}

// askTree has the hub make a chain's tree, and verifies what it says.
func (r *Resolver) askTree(ctx context.Context, chain string) (*index.Statement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, treeTimeout, errors.New("it does not answer"))
	defer cancel()
	s, err := r.hub.Tree(ctx, chain)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	keys, err := r.keys.Get(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Verify(chain, keys); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	return s, nil
}
