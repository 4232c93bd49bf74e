package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

var key = ed25519.NewKeyFromSeed(make([]byte, 32))

func chainID(n int) string  { return "sha256:" + chunk.Sum(fmt.Append(nil, "chain", n)).String() }
func treeID(n int) chunk.ID { return chunk.Sum(fmt.Append(nil, "tree", n)) }
func statement(n int) *index.Statement {
	s := index.Sign(key, chainID(n), treeID(n))
	return &s
}

// fakeHub knows a stack of chains 0, 1, … top, the last an image.
type fakeHub struct {
	mu     sync.Mutex
	asked  []string
	answer func(ctx context.Context, chain string) (*wire.Chain, error)
	tree   func(ctx context.Context, chain string) (*index.Statement, error)
	key    ed25519.PrivateKey
	local  bool
	heard  time.Time // when something came of it; guarded by mu
}

// hear says that something comes of the hub.
func (h *fakeHub) hear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = time.Now()
}

func (h *fakeHub) Heard() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard
}

func (h *fakeHub) Chain(ctx context.Context, chain string) (*wire.Chain, error) {
	h.mu.Lock()
	h.asked = append(h.asked, chain)
	h.mu.Unlock()
	return h.answer(ctx, chain)
}

func (h *fakeHub) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	return h.tree(ctx, chain)
}

func (h *fakeHub) Keys(context.Context) ([]ed25519.PublicKey, error) {
	return []ed25519.PublicKey{h.key.Public().(ed25519.PublicKey)}, nil
}
func (h *fakeHub) Learnable() error {
	if !h.local {
		return errors.New("hub http://hub.test is not on this machine")
	}
	return nil
}

// stack answers about the chains 0, 1, … top: each on the one before.
func stack(top int) func(context.Context, string) (*wire.Chain, error) {
	return func(_ context.Context, chain string) (*wire.Chain, error) {
		var links []wire.Link
		for n := range top + 1 {
			l := wire.Link{Chain: chainID(n), DiffID: chainID(n)}
			if n > 0 {
				l.Parent = chainID(n - 1)
			}
			if n == top {
				l.Statement = statement(n)
			}
			links = append(links, l)
		}
		for n, l := range links {
			if l.Chain == chain {
				return &wire.Chain{Link: l, Above: links[n+1:], Complete: true}, nil
			}
		}
		return nil, chunk.ErrNotFound
	}
}

// fakeTrees has the trees that were fetched. fetch, if it is set, decides.
type fakeTrees struct {
	t     *testing.T
	fetch func(ctx context.Context, id chunk.ID, begun func()) error

	mu      sync.Mutex // guards the following
	here    map[chunk.ID]bool
	log     []string
	removal func() // called in Remove
	busy    error  // what Remove fails with
	unable  error  // why nothing can be mounted
}

func (f *fakeTrees) Mountable() error { return f.unable }

func (f *fakeTrees) say(s string, id chunk.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, s+" "+id.Short())
}

// said returns what was done since it was called last.
func (f *fakeTrees) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.log = nil }()
	return f.log
}

func (f *fakeTrees) Has(id chunk.ID) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.here[id] }

func (f *fakeTrees) List() (all []chunk.ID, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.here {
		all = append(all, id)
	}
	return all, nil
}

func (f *fakeTrees) Ensure(ctx context.Context, id chunk.ID, begun func()) error {
	if f.Has(id) {
		f.say("start", id)
		return nil
	}
	f.say("fetch", id)
	if f.fetch != nil {
		if err := f.fetch(ctx, id, begun); err != nil {
			return err
		}
	}
	begun()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.here[id] = true
	return nil
}

func (f *fakeTrees) Mount(_ context.Context, id chunk.ID) (string, error) {
	f.say("mount", id)
	if !f.Has(id) {
		f.t.Errorf("tree %s is mounted and not here", id.Short())
	}
	return "/m/" + id.Short(), nil
}

func (f *fakeTrees) Starts(id chunk.ID) { f.say("starts", id) }

func (f *fakeTrees) Remove(id chunk.ID) error {
	f.say("remove", id)
	if f.removal != nil {
		f.removal()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy != nil {
		return f.busy
	}
	delete(f.here, id)
	return nil
}

func (f *fakeTrees) Size(chunk.ID) (int64, int64) { return 1000, 3 }

func newResolver(t *testing.T, h *fakeHub) (*Resolver, *fakeTrees) {
	t.Helper()
	trees := &fakeTrees{t: t, here: map[chunk.ID]bool{}}
	return restart(t, t.TempDir(), h, trees, slog.DiscardHandler), trees
}

// restart returns the resolver of a node that starts with root.
func restart(t *testing.T, root string, h *fakeHub, trees *fakeTrees, log slog.Handler) *Resolver {
	t.Helper()
	if h.key == nil {
		h.key = key
	}
	h.local = true
	keys, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(root, h, trees, keys, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// claim claims a chain as the snapshotter does.
func claim(t *testing.T, r *Resolver, n int) bool {
	t.Helper()
	known, _ := claimWhy(t, r, n)
	return known
}

func claimWhy(t *testing.T, r *Resolver, n int) (known bool, why string) {
	t.Helper()
	parent := ""
	if n > 0 {
		parent = chainID(n - 1)
	}
	r.Hold(chainID(n))
	if known, why = r.Claim(t.Context(), chainID(n), parent, nil); !known {
		r.Drop(chainID(n))
	}
	return known, why
}

// pull claims the chains 0 to top as containerd does.
func pull(t *testing.T, r *Resolver, top int) (lazy []bool) {
	t.Helper()
	for n := range top + 1 {
		lazy = append(lazy, claim(t, r, n))
	}
	return lazy
}
