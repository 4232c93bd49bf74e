package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// bring has a chain's tree here, held once.
func bring(t *testing.T, r *Resolver, s *index.Statement) {
	t.Helper()
	r.Hold(s.Chain)
	if err := r.ensure(t.Context(), s, true); err != nil {
		t.Error(err)
	}
}

func TestLastDropRemovesTheTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		claim(t, r, 0)
		synctest.Wait()
		if bytes, files := r.Usage(chainID(0)); bytes != 1000 || files != 3 {
			t.Errorf("usage %d, %d", bytes, files)
		}
		// A second chain with the same tree keeps it.
		same := index.Sign(key, chainID(1), treeID(0))
		bring(t, r, &same)
		synctest.Wait()
		if bytes, _ := r.Usage(chainID(0)); bytes != 0 {
			t.Errorf("a shared tree counts %d bytes", bytes)
		}
		r.Drop(chainID(0))
		if !trees.Has(treeID(0)) {
			t.Fatal("a tree that another chain has is gone")
		}
		r.Hold(chainID(1))
		if bytes, _ := r.Usage(chainID(1)); bytes != 0 {
			t.Errorf("a tree that somebody else holds counts %d bytes", bytes)
		}
		r.Drop(chainID(1))
		if !trees.Has(treeID(0)) {
			t.Fatal("a tree that somebody holds is gone")
		}
		r.Drop(chainID(1))
		if trees.Has(treeID(0)) || len(r.Statements()) != 0 || len(r.uses) != 0 {
			t.Error("the tree outlives its chains")
		}
		if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
			t.Errorf("the statements outlive their chains: %v, %v", left, err)
		}
		r.Drop(chainID(5)) // never here: no matter
	})
}

func TestTwoChainsShareAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		arrived := make(chan struct{})
		trees.fetch = func(context.Context, chunk.ID, func()) error { <-arrived; return nil }
		for n := range 2 {
			same := index.Sign(key, chainID(n), treeID(0))
			go bring(t, r, &same)
		}
		synctest.Wait()
		close(arrived)
		synctest.Wait()
		if len(trees.said()) != 1 || len(r.Statements()) != 2 {
			t.Errorf("statements: %v", r.Statements())
		}
	})
}

// A bind of a base that is only claimed: when it ends, the containers on the base
// go on.
func TestBindOfAClaimedBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(1), tree: func(context.Context, string) (*index.Statement, error) { return statement(0), nil }}
		r, trees := newResolver(t, h)
		pull(t, r, 1)      // its snapshots hold both chains
		r.Hold(chainID(0)) // lighter mount
		for range 2 {      // and a container on the base
			if _, err := r.Mount(t.Context(), chainID(0)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.Drop(chainID(0)) // lighter unmount
		if !trees.Has(treeID(0)) {
			t.Error("the tree is gone below a container")
		}
		r.Drop(chainID(0))
		if trees.Has(treeID(0)) {
			t.Error("the tree outlives its snapshot")
		}
	})
}

// The index of an image that nobody claims in the end stays for a while only.
func TestIndexOfAnAbandonedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(3)})
		pull(t, r, 1)
		synctest.Wait()
		if !trees.Has(treeID(3)) {
			t.Fatal("the index was not fetched")
		}
		time.Sleep(memory)
		synctest.Wait()
		if trees.Has(treeID(3)) || len(r.Statements()) != 0 {
			t.Error("the index stays")
		}
	})
}

func TestTreeThatIsLeavingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		bring(t, r, statement(0))
		synctest.Wait()
		unmounted := make(chan struct{})
		trees.removal = func() { <-unmounted }
		go r.Drop(chainID(0))
		synctest.Wait()
		if r.Hold(chainID(3)); r.statement(chainID(3)) != nil { // does not wait
			t.Error("a chain that nobody fetched is here")
		}
		claimed := false
		go func() { claimed = claim(t, r, 0) }()
		synctest.Wait()
		if claimed {
			t.Error("a tree was claimed while it was being removed")
		}
		trees.removal = nil
		close(unmounted)
		synctest.Wait()
		if !claimed || !trees.Has(treeID(0)) {
			t.Error("the chain was not claimed anew")
		}
	})
}

// While chains are claimed, mounted and dropped by many at once, a chain that is
// held has its tree, and none that nobody holds.
func TestClaimsAgainstDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{tree: func(_ context.Context, chain string) (*index.Statement, error) {
			s := index.Sign(key, chain, treeID(0)) // all have the same
			return &s, nil
		}}
		r, trees := newResolver(t, h)
		var wg sync.WaitGroup
		for g := range 8 {
			random := rand.New(rand.NewPCG(uint64(g), 7))
			wg.Go(func() {
				for range 50 {
					chain := chainID(random.IntN(3))
					r.Hold(chain)
					if _, err := r.Mount(t.Context(), chain); err != nil {
						t.Error(err)
					}
					if !trees.Has(treeID(0)) {
						t.Error("a chain that is held has no tree")
					}
					r.Drop(chain)
				}
			})
		}
		wg.Wait()
		time.Sleep(memory)
		synctest.Wait()
		if len(r.uses) != 0 || trees.Has(treeID(0)) {
			t.Errorf("left: %v, %v", r.uses, trees.here)
		}
	})
}

// After a restart statements are there, and what nobody holds goes: with its
// statement or without one, and also the remains of a file.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(0)}
		root := t.TempDir()
		trees := &fakeTrees{t: t, here: map[chunk.ID]bool{}}
		r := restart(t, root, h, trees, slog.DiscardHandler)
		if _, err := r.keys.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			bring(t, r, statement(n))
		}
		synctest.Wait()
		trees.here[treeID(7)] = true
		if err := os.WriteFile(r.path(chainID(0))+".new", []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		r = restart(t, root, h, trees, slog.DiscardHandler)
		r.Hold(chainID(1))
		r.Sweep()
		left, err := os.ReadDir(r.dir)
		if err != nil || len(left) != 1 || len(r.Statements()) != 1 || r.Statements()[0].Chain != chainID(1) {
			t.Errorf("left %v, %v", left, err)
		}
		if len(trees.here) != 1 || !trees.here[treeID(1)] {
			t.Errorf("left %v", trees.here)
		}
		if !claim(t, r, 1) || len(h.asked) != 0 {
			t.Error("what is here is not claimed without the hub")
		}
	})
}

// A tree that cannot go is swept at the next start.
func TestBusyTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		claim(t, r, 0)
		synctest.Wait()
		trees.busy = errors.New("device or resource busy")
		r.Drop(chainID(0))
		if !claim(t, r, 0) {
			t.Error("the chain cannot be claimed any more")
		}
		r.Drop(chainID(0))
		trees.busy = nil
		r.Sweep()
		if trees.Has(treeID(0)) {
			t.Error("the tree was not swept")
		}
	})
}

// Statements on disk are worth what those of a hub are: nothing if the pinned key
// is not theirs, or if somebody changed them.
func TestStatementsOnDiskAreVerified(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, root string){
		"the key was replaced": func(t *testing.T, root string) {
			pinned := index.FormatKey(other.Public().(ed25519.PublicKey))
			if err := os.WriteFile(filepath.Join(root, "hub.keys"), []byte(pinned), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"its tree was changed": func(t *testing.T, root string) {
			path := filepath.Join(root, "chains", chainID(0)[7:])
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b = []byte(strings.Replace(string(b), treeID(0).String(), treeID(1).String(), 1))
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHub{answer: stack(-1)}
			root := t.TempDir()
			trees := &fakeTrees{t: t, here: map[chunk.ID]bool{}}
			r := restart(t, root, h, trees, slog.DiscardHandler)
			if _, err := r.keys.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
			bring(t, r, statement(0))
			spoil(t, root)
			trees.here[treeID(1)] = true
			var log strings.Builder
			r = restart(t, root, h, trees, slog.NewTextHandler(&log, nil))
			if claim(t, r, 0) {
				t.Error("the statement was believed")
			}
			if !strings.Contains(log.String(), "WARN") {
				t.Errorf("the log says %q", log.String())
			}
		})
	}
}

func TestNamesThatAreNoChains(t *testing.T) {
	r, _ := newResolver(t, &fakeHub{answer: stack(0)})
	for _, bad := range []string{"", "sha256:", "sha256:../../etc/passwd", strings.Repeat("a", 64), "sha512:" + chainID(0)[7:]} {
		if r.path(bad) != "" {
			t.Errorf("%q has a path: %s", bad, r.path(bad))
		}
		if err := r.keep(&index.Statement{Chain: bad}); err == nil {
			t.Errorf("a statement about %q was kept", bad)
		}
	}
}
