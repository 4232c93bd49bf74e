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

// fakeHub is a HubClient and KeySource. It remembers the chains and manifests that it was asked
// about.
type fakeHub struct {
	answer func(ctx context.Context, chain string) (*wire.Chain, error)
	image  func(ctx context.Context, manifest string) (*wire.Manifest, error)
	tree   func(ctx context.Context, chain string) (*index.Statement, error)
	soon   func(manifest string) *wire.Soon // nil, and a nil answer: it does not say
	key    ed25519.PrivateKey
	local  bool // the hub is on this machine

	mu        sync.Mutex // guards what follows
	asked     []string   // chains that were looked up
	manifests []string   // manifests that were looked up
	heard     time.Time  // when the hub last sent something
}

// send records that the hub sends something now.
func (h *fakeHub) send() { h.hear(time.Now()) }

func (h *fakeHub) hear(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = at
}

func (h *fakeHub) URL() string { return "http://hub.test" }

func (h *fakeHub) lastReceived() time.Time {
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

func (h *fakeHub) Manifest(ctx context.Context, manifest string) (*wire.Manifest, error) {
	h.mu.Lock()
	h.manifests = append(h.manifests, manifest)
	h.mu.Unlock()
	return h.image(ctx, manifest)
}

func (h *fakeHub) Soon(_ context.Context, manifest string) (*wire.Soon, error) {
	if h.soon != nil {
		if soon := h.soon(manifest); soon != nil {
			return soon, nil
		}
	}
	return nil, chunk.ErrNotFound
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

// stack returns the answers of a hub that knows one image, with the chains 0, 1, … top.
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

// fakeTrees is a Trees that has the trees that were fetched. If fetch is set, each fetch calls it
// and returns its error.
type fakeTrees struct {
	t     *testing.T
	fetch func(ctx context.Context, id chunk.ID, begun func()) error

	mu      sync.Mutex // guards the following
	onDisk  map[chunk.ID]bool
	calls   []string // names of methods with short tree IDs; "start" is an Ensure of a tree on disk
	removal func()   // called by Remove
	busy    error    // returned by Remove
	unable  error    // returned by CheckMountable
}

func (f *fakeTrees) CheckMountable() error { return f.unable }

func (f *fakeTrees) note(call string, id chunk.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call+" "+id.Short())
}

// takeCalls returns the calls since the last takeCalls.
func (f *fakeTrees) takeCalls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.calls = nil }()
	return f.calls
}

func (f *fakeTrees) Has(id chunk.ID) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.onDisk[id] }

func (f *fakeTrees) List() (all []chunk.ID, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.onDisk {
		all = append(all, id)
	}
	return all, nil
}

func (f *fakeTrees) Ensure(ctx context.Context, id chunk.ID, begun func()) error {
	if f.Has(id) {
		f.note("start", id)
		return nil
	}
	f.note("fetch", id)
	if f.fetch != nil {
		if err := f.fetch(ctx, id, begun); err != nil {
			return err
		}
	}
	begun()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onDisk[id] = true
	return nil
}

func (f *fakeTrees) Mount(_ context.Context, id chunk.ID) (string, error) {
	f.note("mount", id)
	if !f.Has(id) {
		f.t.Errorf("tree %s is mounted, but was not fetched", id.Short())
	}
	return "/m/" + id.Short(), nil
}

func (f *fakeTrees) NoteStart(id chunk.ID) { f.note("starts", id) }

func (f *fakeTrees) Remove(id chunk.ID) error {
	f.note("remove", id)
	if f.removal != nil {
		f.removal()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy != nil {
		return f.busy
	}
	delete(f.onDisk, id)
	return nil
}

func (f *fakeTrees) Size(chunk.ID) (int64, int64) { return 1000, 3 }

func newResolver(t *testing.T, h *fakeHub) (*Resolver, *fakeTrees) {
	t.Helper()
	trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
	return restart(t, t.TempDir(), h, trees, slog.DiscardHandler), trees
}

// restart returns the resolver of a node that starts on root. The node learns its hub's key when it
// needs it, unless it has learned a key before.
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
	return open(t, h, Config{Root: root, Trees: trees, Keys: keys, Log: slog.New(log)})
}

// open returns a resolver with TrustChain and the hub as its only answerer, unless the
// configuration has answerers.
func open(t *testing.T, h *fakeHub, c Config) *Resolver {
	t.Helper()
	c.LastReceived = h.lastReceived
	if c.Answerers == nil {
		c.Trust, c.Answerers = TrustChain, []Answerer{NewHub(h)}
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// claim claims chain n as a front does, and reports whether the claim succeeded.
func claim(t *testing.T, r *Resolver, n int) bool {
	t.Helper()
	return claimErr(t, r, n) == nil
}

// claimErr does the same as claim, and returns the error.
func claimErr(t *testing.T, r *Resolver, n int) error {
	t.Helper()
	parent := ""
	if n > 0 {
		parent = chainID(n - 1)
	}
	r.Hold(chainID(n))
	_, err := r.Claim(t.Context(), Request{Chain: chainID(n), Parent: parent})
	if err != nil {
		r.Drop(chainID(n))
	}
	return err
}

// pull claims the chains 0 to top, and reports which claims succeeded.
func pull(t *testing.T, r *Resolver, top int) (lazy []bool) {
	t.Helper()
	for n := range top + 1 {
		lazy = append(lazy, claim(t, r, n))
	}
	return lazy
}

// statement returns the verified statement of a chain on disk, or nil.
func (c *Chains) statement(chain string) *index.Statement {
	if s := c.stateOf(chain); s.refused == nil {
		return s.statement
	}
	return nil
}
