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

// fetchHeld holds the chain of a statement, keeps the statement and fetches its tree.
func fetchHeld(t *testing.T, r *Resolver, s *index.Statement) {
	t.Helper()
	r.Hold(s.Chain)
	if err := r.ensure(t.Context(), s, full); err != nil {
		t.Error(err)
	}
}

// When the last user of a chain drops it, its tree is removed, unless another chain has the same
// tree.
func TestLastDropRemovesTheTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		claim(t, r, 0)
		synctest.Wait()
		if bytes, inodes := r.Usage(chainID(0)); bytes != 1000 || inodes != 3 {
			t.Errorf("usage %d bytes and %d inodes, want 1000 and 3", bytes, inodes)
		}
		// A second chain with the same tree keeps it.
		same := index.Sign(key, chainID(1), treeID(0))
		fetchHeld(t, r, &same)
		synctest.Wait()
		if bytes, _ := r.Usage(chainID(0)); bytes != 0 {
			t.Errorf("usage of a shared tree: %d bytes, want 0", bytes)
		}
		r.Drop(chainID(0))
		if !trees.Has(treeID(0)) {
			t.Fatal("a tree was removed although another chain has it")
		}
		r.Hold(chainID(1))
		if bytes, _ := r.Usage(chainID(1)); bytes != 0 {
			t.Errorf("usage of a tree with two users: %d bytes, want 0", bytes)
		}
		r.Drop(chainID(1))
		if !trees.Has(treeID(0)) {
			t.Fatal("the tree of a held chain was removed")
		}
		r.Drop(chainID(1))
		if trees.Has(treeID(0)) || len(r.Statements()) != 0 || len(r.states) != 0 {
			t.Error("the tree or its statement stays after the last Drop")
		}
		if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
			t.Errorf("files of statements stay after the last Drop: %v, %v", left, err)
		}
		// They have no effect on an unknown chain.
		r.Drop(chainID(5))
		r.dropLater(chainID(5))
	})
}

// Two chains with the same tree fetch it once.
func TestTwoChainsShareAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		arrived := make(chan struct{})
		trees.fetch = func(context.Context, chunk.ID, func()) error { <-arrived; return nil }
		for n := range 2 {
			same := index.Sign(key, chainID(n), treeID(0))
			go fetchHeld(t, r, &same)
		}
		synctest.Wait()
		close(arrived)
		synctest.Wait()
		if calls := trees.takeCalls(); len(calls) != 1 {
			t.Errorf("fetches of the tree: got %v, want one", calls)
		}
		if s := r.Statements(); len(s) != 2 {
			t.Errorf("got statements %v, want two", s)
		}
	})
}

// When an administrative mount of a claimed base image ends, the tree stays for the containers that
// use it.
func TestMountOfAClaimedBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(1)}
		h.tree = func(context.Context, string) (*index.Statement, error) { return statement(0), nil }
		r, trees := newResolver(t, h)
		pull(t, r, 1)      // the snapshots hold both chains
		r.Hold(chainID(0)) // lighter mount
		for range 2 {      // lighter mount, and a container of the base image
			if _, err := r.Mount(t.Context(), chainID(0)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.Drop(chainID(0)) // lighter unmount
		if !trees.Has(treeID(0)) {
			t.Error("the tree of a container was removed")
		}
		r.Drop(chainID(0))
		if trees.Has(treeID(0)) {
			t.Error("the tree stays after the last Drop")
		}
	})
}

// If the top chain of a pulled image is never claimed, the image's index is removed after
// answerTTL.
func TestIndexOfAnAbandonedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(3)})
		pull(t, r, 1)
		synctest.Wait()
		if !trees.Has(treeID(3)) {
			t.Fatal("the index was not fetched")
		}
		time.Sleep(answerTTL)
		synctest.Wait()
		if trees.Has(treeID(3)) || len(r.Statements()) != 0 {
			t.Error("the index was not removed")
		}
	})
}

// A claim waits while the chain's tree is being removed.
func TestClaimDuringRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		fetchHeld(t, r, statement(0))
		synctest.Wait()
		unmounted := make(chan struct{})
		trees.removal = func() { <-unmounted }
		go r.Drop(chainID(0))
		synctest.Wait()
		// Hold of another chain does not wait for the removal.
		if r.Hold(chainID(3)); r.statement(chainID(3)) != nil {
			t.Error("a chain that was only held has a statement, want none")
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
			t.Error("the chain was not claimed again")
		}
	})
}

// During concurrent mounts and drops, a held chain has its tree. At the end, the tree without
// users is removed.
func TestMountsAgainstDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{tree: func(_ context.Context, chain string) (*index.Statement, error) {
			s := index.Sign(key, chain, treeID(0)) // all chains have the same tree
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
						t.Error("a held chain has no tree")
					}
					r.Drop(chain)
				}
			})
		}
		wg.Wait()
		time.Sleep(answerTTL)
		synctest.Wait()
		if len(r.states) != 0 || trees.Has(treeID(0)) {
			t.Errorf("after the last Drop: chains %v, trees %v; want none", r.states, trees.onDisk)
		}
	})
}

// After a restart, Sweep removes chains without users, trees without statements, and partly
// written files. The statement and the tree of a held chain stay.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(0)}
		root := t.TempDir()
		trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
		r := restart(t, root, h, trees, slog.DiscardHandler)
		if _, err := r.keys.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			fetchHeld(t, r, statement(n))
		}
		synctest.Wait()
		trees.onDisk[treeID(7)] = true
		if err := os.WriteFile(r.path(chainID(0))+".new", []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		r = restart(t, root, h, trees, slog.DiscardHandler)
		r.Hold(chainID(1))
		r.Sweep()
		left, err := os.ReadDir(r.dir)
		if err != nil || len(left) != 1 || len(r.Statements()) != 1 || r.Statements()[0].Chain != chainID(1) {
			t.Errorf("files %v, %v; want only the statement of chain 1", left, err)
		}
		if len(trees.onDisk) != 1 || !trees.onDisk[treeID(1)] {
			t.Errorf("trees %v, want only tree 1", trees.onDisk)
		}
		if !claim(t, r, 1) || len(h.asked) != 0 {
			t.Error("a cached chain is not claimed without the hub")
		}
	})
}

// A tree that is in use when its chain is dropped stays, and is removed by the next Sweep.
func TestBusyTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		claim(t, r, 0)
		synctest.Wait()
		trees.busy = errors.New("device or resource busy")
		r.Drop(chainID(0))
		if !claim(t, r, 0) {
			t.Error("the chain cannot be claimed again")
		}
		r.Drop(chainID(0))
		trees.busy = nil
		r.Sweep()
		if trees.Has(treeID(0)) {
			t.Error("the tree was not swept")
		}
	})
}

// Statements on disk are verified in the same way as a hub's statements.
func TestStatementsOnDiskAreVerified(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, root string){
		"the key was replaced": func(t *testing.T, root string) {
			pinned := index.FormatKey(otherKey.Public().(ed25519.PublicKey))
			if err := os.WriteFile(filepath.Join(root, "hub.keys"), []byte(pinned), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"the statement's tree ID was changed": func(t *testing.T, root string) {
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
			trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
			r := restart(t, root, h, trees, slog.DiscardHandler)
			if _, err := r.keys.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
			fetchHeld(t, r, statement(0))
			spoil(t, root)
			trees.onDisk[treeID(1)] = true
			var log strings.Builder
			r = restart(t, root, h, trees, slog.NewTextHandler(&log, nil))
			if claim(t, r, 0) {
				t.Error("the chain was claimed with a statement that cannot be verified")
			}
			if !strings.Contains(log.String(), "WARN") {
				t.Errorf("log %q, want a warning", log.String())
			}
		})
	}
}

// A text that is not a chainID names no file, and no statement about it is kept.
func TestInvalidChainIDs(t *testing.T) {
	r, _ := newResolver(t, &fakeHub{answer: stack(0)})
	for _, bad := range []string{"", "sha256:", "sha256:../../etc/passwd", strings.Repeat("a", 64),
		"sha512:" + chainID(0)[7:]} {
		if r.path(bad) != "" {
			t.Errorf("%q has a path: %s", bad, r.path(bad))
		}
		if err := r.keep(&index.Statement{Chain: bad}); err == nil {
			t.Errorf("kept a statement about %q", bad)
		}
	}
}
