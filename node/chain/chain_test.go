package chain

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store/hub"
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
	answer func(ctx context.Context, chain string) (*hub.Chain, error)
	tree   func(chain string) (*index.Statement, error)
	key    ed25519.PrivateKey
	local  bool
}

func (h *fakeHub) Chain(ctx context.Context, chain string) (*hub.Chain, error) {
	h.mu.Lock()
	h.asked = append(h.asked, chain)
	h.mu.Unlock()
	return h.answer(ctx, chain)
}

func (h *fakeHub) Tree(_ context.Context, chain string) (*index.Statement, error) {
	return h.tree(chain)
}

func (h *fakeHub) Key(context.Context) (ed25519.PublicKey, error) {
	return h.key.Public().(ed25519.PublicKey), nil
}
func (h *fakeHub) Loopback() bool { return h.local }
func (h *fakeHub) URL() string    { return "http://hub.test" }

func stack(top int) func(context.Context, string) (*hub.Chain, error) {
	return func(_ context.Context, chain string) (*hub.Chain, error) {
		var links []hub.Link
		for n := range top + 1 {
			l := hub.Link{Chain: chainID(n), DiffID: chainID(n)}
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
				return &hub.Chain{Link: l, Above: links[n+1:], Complete: true}, nil
			}
		}
		return nil, chunk.ErrNotFound
	}
}

// fakeTrees has the trees that it is told to.
type fakeTrees struct {
	mu     sync.Mutex
	here   map[chunk.ID]bool
	ensure error
	log    []string
}

func (f *fakeTrees) say(s string, id chunk.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, s+" "+id.Short())
}
func (f *fakeTrees) Has(id chunk.ID) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.here[id] }
func (f *fakeTrees) Ensure(_ context.Context, id chunk.ID) error {
	if f.ensure != nil {
		return f.ensure
	}
	f.say("ensure", id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.here[id] = true
	return nil
}
func (f *fakeTrees) Mount(_ context.Context, id chunk.ID) (string, error) {
	f.say("mount", id)
	return "/m/" + id.Short(), nil
}
func (f *fakeTrees) Remove(id chunk.ID) error {
	f.say("remove", id)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.here, id)
	return nil
}
func (f *fakeTrees) Size(chunk.ID) (int64, int64) { return 1000, 3 }

func newResolver(t *testing.T, h *fakeHub) (*Resolver, *fakeTrees) {
	t.Helper()
	root := t.TempDir()
	if h.key == nil {
		h.key = key
	}
	h.local = true
	keys, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	trees := &fakeTrees{here: map[chunk.ID]bool{}}
	r, err := New(root, h, trees, keys, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r, trees
}

// pull claims the chains 0 to top as containerd does.
func pull(t *testing.T, r *Resolver, top int) []bool {
	t.Helper()
	var lazy []bool
	parent := ""
	for n := range top + 1 {
		lazy = append(lazy, r.Claim(t.Context(), chainID(n), parent, nil))
		parent = chainID(n)
	}
	return lazy
}

func TestOneLookupAPull(t *testing.T) {
	h := &fakeHub{answer: stack(5)}
	r, trees := newResolver(t, h)
	for n, lazy := range pull(t, r, 5) {
		if !lazy {
			t.Errorf("chain %d is not lazy", n)
		}
	}
	if len(h.asked) != 1 || h.asked[0] != chainID(0) {
		t.Errorf("asked %d times", len(h.asked))
	}
	if len(trees.log) != 1 || !trees.here[treeID(5)] {
		t.Errorf("fetched %v, want the top's tree alone", trees.log)
	}
	// The second pull finds the top on this machine.
	h.answer = func(context.Context, string) (*hub.Chain, error) { return nil, errors.New("the hub is gone") }
	r.links = map[string]remembered{}
	if !r.Claim(t.Context(), chainID(5), chainID(4), nil) {
		t.Error("a tree that is here is not claimed without the hub")
	}
}

func TestUnknownLayerOnKnownOnes(t *testing.T) {
	h := &fakeHub{answer: stack(2)}
	r, _ := newResolver(t, h)
	got := pull(t, r, 3)
	if want := []bool{true, true, true, false}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("lazy: %v, want %v", got, want)
	}
	if len(h.asked) != 1 {
		t.Errorf("asked %d times: the first answer names all above", len(h.asked))
	}
}

func TestUnknownImage(t *testing.T) {
	h := &fakeHub{answer: stack(0)}
	r, _ := newResolver(t, h)
	for range 2 {
		if r.Claim(t.Context(), chainID(7), "", nil) {
			t.Error("an unknown chain is lazy")
		}
	}
	if len(h.asked) != 1 {
		t.Errorf("asked %d times about the same", len(h.asked))
	}
	now := time.Now().Add(2 * negativeMemory)
	r.now = func() time.Time { return now }
	h.answer = stack(7)
	if !r.Claim(t.Context(), chainID(7), "", nil) {
		t.Error("an image that was added meanwhile is not lazy")
	}
}

func TestSilentHub(t *testing.T) {
	h := &fakeHub{answer: func(ctx context.Context, _ string) (*hub.Chain, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	r, _ := newResolver(t, h)
	start := time.Now()
	pull(t, r, 9)
	if took := time.Since(start); took > 5*lookupTimeout {
		t.Errorf("a pull of ten layers waited %s for a silent hub", took)
	}
	if len(h.asked) != 1 {
		t.Errorf("asked a silent hub %d times", len(h.asked))
	}
	now := time.Now().Add(2 * silence)
	r.now = func() time.Time { return now }
	h.answer = stack(1)
	if !r.Claim(t.Context(), chainID(0), "", nil) {
		t.Error("a hub that is back is not asked")
	}
}

func TestForgedStatements(t *testing.T) {
	other := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", 32)))
	forge := func(s index.Statement) func(context.Context, string) (*hub.Chain, error) {
		return func(_ context.Context, c string) (*hub.Chain, error) {
			return &hub.Chain{Link: hub.Link{Chain: c, Statement: &s}, Complete: true}, nil
		}
	}
	for name, s := range map[string]index.Statement{
		"another key":   index.Sign(other, chainID(0), treeID(0)),
		"another chain": index.Sign(key, chainID(1), treeID(0)),
	} {
		t.Run(name, func(t *testing.T) {
			r, trees := newResolver(t, &fakeHub{answer: forge(s)})
			if r.Claim(t.Context(), chainID(0), "", nil) {
				t.Error("a forged statement was believed")
			}
			if len(trees.log) != 0 {
				t.Errorf("its tree was fetched: %v", trees.log)
			}
			events := r.Events()
			if len(events) != 1 || events[0].Lazy || !strings.Contains(events[0].Why, "refused") {
				t.Errorf("the status says %+v", events)
			}
		})
	}
}

func TestTreeThatCannotBeFetched(t *testing.T) {
	h := &fakeHub{answer: stack(0)}
	r, trees := newResolver(t, h)
	trees.ensure = errors.New("its digest is wrong")
	if r.Claim(t.Context(), chainID(0), "", nil) {
		t.Error("a top whose tree is not here was claimed")
	}
	if r.Statements() != nil {
		t.Error("its statement was kept")
	}
}

func TestMountOfAClaim(t *testing.T) {
	h := &fakeHub{answer: stack(3)}
	h.tree = func(c string) (*index.Statement, error) { return statement(1), nil }
	r, trees := newResolver(t, h)
	pull(t, r, 1)
	dir, err := r.Mount(t.Context(), chainID(1))
	if err != nil || dir != "/m/"+treeID(1).Short() {
		t.Fatalf("mounted at %q, %v", dir, err)
	}
	h.tree = func(string) (*index.Statement, error) { return nil, errors.New("gone") }
	if _, err := r.Mount(t.Context(), chainID(1)); err != nil {
		t.Errorf("a tree that is here needs the hub: %v", err)
	}
	if _, err := r.Mount(t.Context(), chainID(2)); err == nil || !strings.Contains(err.Error(), chainID(2)) {
		t.Errorf("a claim without a hub: %v", err)
	}
	if !trees.here[treeID(1)] {
		t.Error("the tree is not here")
	}
}

func TestRelease(t *testing.T) {
	h := &fakeHub{answer: stack(0)}
	r, trees := newResolver(t, h)
	r.Claim(t.Context(), chainID(0), "", nil)
	if bytes, files := r.Usage(chainID(0)); bytes != 1000 || files != 3 {
		t.Errorf("usage %d, %d", bytes, files)
	}
	// A second chain with the same tree keeps it.
	same := index.Sign(key, chainID(1), treeID(0))
	if err := r.save(&same); err != nil {
		t.Fatal(err)
	}
	if bytes, _ := r.Usage(chainID(0)); bytes != 0 {
		t.Errorf("a shared tree counts %d bytes", bytes)
	}
	r.Release(chainID(0))
	if !trees.here[treeID(0)] {
		t.Fatal("a tree that another chain has is gone")
	}
	r.Hold(chainID(1))
	r.Release(chainID(1))
	if !trees.here[treeID(0)] {
		t.Fatal("a tree that somebody holds is gone")
	}
	r.Drop(chainID(1))
	if trees.here[treeID(0)] || len(r.Statements()) != 0 {
		t.Error("the tree outlives its chains")
	}
	r.Release(chainID(5)) // never here: no matter
}

func TestKeepReleasesWhatACrashLeft(t *testing.T) {
	r, trees := newResolver(t, &fakeHub{answer: stack(0)})
	for n := range 3 {
		if err := r.ensure(t.Context(), chainID(n), statement(n)); err != nil {
			t.Fatal(err)
		}
	}
	r.Keep([]string{chainID(1)})
	if left := r.Statements(); len(left) != 1 || left[0].Chain != chainID(1) || !trees.here[treeID(1)] || trees.here[treeID(0)] {
		t.Errorf("left %v, %v", left, trees.here)
	}
}

func TestKeysArePinned(t *testing.T) {
	root := t.TempDir()
	h := &fakeHub{key: key, local: true}
	k, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.key = ed25519.NewKeyFromSeed([]byte(strings.Repeat("y", 32))) // the hub changes its key
	again, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.Get(t.Context())
	if err != nil || !got[0].Equal(key.Public()) {
		t.Errorf("the pinned key changed: %v, %v", got, err)
	}
	if info, err := os.Stat(k.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pinned keys' file: %v, %v", info, err)
	}
	h.local = false
	if _, err := NewKeys(t.TempDir(), nil, h); err == nil {
		t.Error("a remote hub's key was trusted at first sight")
	}
	if _, err := NewKeys(t.TempDir(), []string{"ed25519:zz"}, h); err == nil {
		t.Error("a key that is none was accepted")
	}
}

func TestNamesThatAreNoChains(t *testing.T) {
	r, _ := newResolver(t, &fakeHub{answer: stack(0)})
	for _, bad := range []string{"", "sha256:", "sha256:../../etc/passwd", strings.Repeat("a", 64), "sha512:" + chainID(0)[7:]} {
		if r.path(bad) != "" {
			t.Errorf("%q has a path: %s", bad, r.path(bad))
		}
		if err := r.save(&index.Statement{Chain: bad}); err == nil {
			t.Errorf("a statement about %q was saved", bad)
		}
	}
}
