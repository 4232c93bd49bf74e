package resolver

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

// statementFile returns the file of chain 0's statement below root.
func statementFile(root string) string { return filepath.Join(root, "chains", chainID(0)[7:]) }

// rewrite replaces a file's bytes with what change makes of them.
func rewrite(t *testing.T, path string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refusals are ways to make the statement of chain 0 below root unverifiable.
var refusals = map[string]func(t *testing.T, root string){
	"the key was rotated": func(t *testing.T, root string) {
		pinned := index.FormatKey(otherKey.Public().(ed25519.PublicKey))
		rewrite(t, filepath.Join(root, "hub.keys"), func([]byte) []byte { return []byte(pinned) })
	},
	"hub.keys is gone": func(t *testing.T, root string) {
		if err := os.Remove(filepath.Join(root, "hub.keys")); err != nil {
			t.Fatal(err)
		}
	},
	"a bit of the signature flipped": func(t *testing.T, root string) {
		rewrite(t, statementFile(root), func(b []byte) []byte { b[len(b)-20] ^= 1; return b })
	},
	"a newer format": func(t *testing.T, root string) {
		rewrite(t, statementFile(root), func([]byte) []byte {
			s := *statement(0)
			s.Format = index.Format + 1
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
	},
	"truncated": func(t *testing.T, root string) {
		rewrite(t, statementFile(root), func(b []byte) []byte { return b[:len(b)/2] })
	},
	"empty": func(t *testing.T, root string) { rewrite(t, statementFile(root), func([]byte) []byte { return nil }) },
	"not JSON": func(t *testing.T, root string) {
		rewrite(t, statementFile(root), func([]byte) []byte { return []byte("\x00\x01") })
	},
	"the statement of another chain": func(t *testing.T, root string) {
		rewrite(t, statementFile(root), func([]byte) []byte {
			b, err := json.Marshal(statement(1))
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
	},
}

// held returns the root and the trees of a node that has fetched the tree of chain 0.
func held(t *testing.T, h *fakeHub) (root string, trees *fakeTrees) {
	t.Helper()
	root, trees = t.TempDir(), &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
	r := restart(t, root, h, trees, slog.DiscardHandler)
	if _, err := r.keys.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	fetchHeld(t, r, statement(0))
	trees.takeCalls()
	return root, trees
}

// restartHeld restarts the node of held, with a holder of chain 0.
func restartHeld(t *testing.T, root string, h *fakeHub, trees *fakeTrees) *Resolver {
	t.Helper()
	r := restart(t, root, h, trees, slog.DiscardHandler)
	r.Hold(chainID(0))
	r.Sweep()
	return r
}

// A container uses a chain whose statement cannot be verified when the node starts. The tree and
// the statement stay, and new pulls do not claim the chain.
func TestRefusedStatementKeepsTheTree(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			h := &fakeHub{answer: stack(-1)}
			root, trees := held(t, h)
			refuse(t, root)
			for range 2 {
				r := restartHeld(t, root, h, trees)
				if calls := trees.takeCalls(); !trees.Has(treeID(0)) {
					t.Fatalf("the tree is gone: calls %v", calls)
				}
				if _, err := os.Stat(statementFile(root)); err != nil {
					t.Fatal(err)
				}
				refused := r.Refused()
				if len(refused) != 1 || refused[0].Chain != chainID(0) || refused[0].Cause == nil ||
					refused[0].Remedy == "" || !slices.Equal(refused[0].Trees, []chunk.ID{treeID(0)}) {
					t.Errorf("refused %+v, want chain 0 with its tree", refused)
				}
				if _, err := r.Claim(t.Context(), Request{Chain: chainID(0)}); err == nil ||
					!strings.Contains(err.Error(), "is refused") {
					t.Errorf("claim: error %v, want that the statement is refused", err)
				}
			}
		})
	}
}

// If a bit of the statement on disk is flipped, in any byte, the tree stays.
func TestEachByteOfAStatement(t *testing.T) {
	h := &fakeHub{answer: stack(-1)}
	root, trees := held(t, h)
	whole, err := os.ReadFile(statementFile(root))
	if err != nil {
		t.Fatal(err)
	}
	for at := range whole {
		rewrite(t, statementFile(root), func([]byte) []byte {
			b := slices.Clone(whole)
			b[at] ^= 1 << (at % 8)
			return b
		})
		restartHeld(t, root, h, trees)
		if !trees.Has(treeID(0)) {
			t.Fatalf("the tree is gone after bit %d of byte %d flipped", at%8, at)
		}
	}
}

// gone is the Tree method of a hub that does not answer.
func gone(context.Context, string) (*index.Statement, error) {
	return nil, errors.New("the hub is gone")
}

// If a refused statement names its tree, a container can start from the tree without a hub. If the
// statement is unreadable, the chain is mounted only after a hub has sent the statement again.
func TestMountOfARefusedStatement(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			h := &fakeHub{answer: stack(-1), tree: gone}
			root, trees := held(t, h)
			refuse(t, root)
			r := restartHeld(t, root, h, trees)
			dir, err := r.Mount(t.Context(), chainID(0))
			if slices.Contains([]string{"truncated", "empty", "not JSON", "the statement of another chain"}, name) {
				if err == nil || !strings.Contains(err.Error(), "is refused") ||
					!strings.Contains(err.Error(), "the hub is gone") {
					t.Errorf("mounted at %q, error %v; want both causes", dir, err)
				}
				h.tree = func(context.Context, string) (*index.Statement, error) { return statement(0), nil }
				dir, err = r.Mount(t.Context(), chainID(0))
				if len(r.Refused()) != 0 {
					t.Errorf("still refused: %+v, want none", r.Refused())
				}
			}
			if err != nil || dir != "/m/"+treeID(0).Short() {
				t.Errorf("mounted at %q, error %v; want the tree", dir, err)
			}
		})
	}
}

// When the hub is reachable again, it sends the statement again. Then nothing is refused any more.
func TestRefusedStatementIsFetchedAgain(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: stack(-1)}
				var back atomic.Bool
				h.tree = func(ctx context.Context, chain string) (*index.Statement, error) {
					if !back.Load() {
						return gone(ctx, chain)
					}
					s := index.Sign(h.key, chainID(0), treeID(0))
					return &s, nil
				}
				root, trees := held(t, h)
				refuse(t, root)
				if name == "the key was rotated" { // the hub signs with the new key
					h.key = otherKey
				}
				r := restartHeld(t, root, h, trees)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go r.RenewStatements(ctx)
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				if name == "hub.keys is gone" { // the key is learned again, and verifies the statement on disk
					if len(r.Refused()) != 0 {
						t.Errorf("still refused: %+v, want none", r.Refused())
					}
					return
				}
				if refused := r.Refused(); len(refused) != 1 || refused[0].Hub == nil ||
					!strings.Contains(refused[0].Hub.Error(), "is gone") {
					t.Fatalf("refused %+v, want one with the hub's error", refused)
				}
				back.Store(true)
				time.Sleep(2 * maxRenewalPause)
				synctest.Wait()
				if left := r.Refused(); len(left) != 0 {
					t.Errorf("still refused: %+v, want none", left)
				}
				r = restartHeld(t, root, h, trees)
				if left := r.Refused(); len(left) != 0 || !claim(t, r, 0) || !trees.Has(treeID(0)) {
					t.Errorf("refused after a restart: %+v, want none; or the chain cannot be claimed", left)
				}
			})
		})
	}
}

// The next pull replaces a refused statement with the hub's statement.
func TestRefusedStatementIsFetchedByAClaim(t *testing.T) {
	for name, refuse := range refusals {
		if name == "the key was rotated" {
			continue // the hub signs with the old key
		}
		h := &fakeHub{answer: stack(0)}
		root, trees := held(t, h)
		refuse(t, root)
		r := restartHeld(t, root, h, trees)
		if !claim(t, r, 0) || len(r.Refused()) != 0 {
			t.Errorf("%s: not claimed, or still refused: %+v", name, r.Refused())
		}
		if r := restartHeld(t, root, h, trees); len(r.Refused()) != 0 || !trees.Has(treeID(0)) {
			t.Errorf("%s: after a restart the tree is gone, or still refused: %+v", name, r.Refused())
		}
	}
}

// If a hub now names another tree for a held chain, the tree on this machine stays, and the other
// tree is not fetched.
func TestRefusedStatementOfAnotherTree(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: stack(-1)}
				root, trees := held(t, h)
				refuse(t, root)
				r := restartHeld(t, root, h, trees)
				h.tree = func(_ context.Context, chain string) (*index.Statement, error) {
					s := index.Sign(signer(r), chain, treeID(9))
					return &s, nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { r.RenewStatements(ctx); close(ended) }()
				time.Sleep(time.Minute)
				cancel()
				<-ended
				r = restartHeld(t, root, h, trees)
				if !trees.Has(treeID(0)) || trees.Has(treeID(9)) {
					t.Error("the tree was replaced")
				}
				if refused := r.Refused(); len(refused) != 1 && name != "hub.keys is gone" {
					t.Errorf("refused %+v, want one", refused)
				}
			})
		})
	}
}

// signer returns the private key that belongs to the resolver's pinned key.
func signer(r *Resolver) ed25519.PrivateKey {
	if slices.Equal(r.keys.List(), []string{index.FormatKey(otherKey.Public().(ed25519.PublicKey))}) {
		return otherKey
	}
	return key
}

// When the last holder of a chain with a refused statement is dropped, the chain's statement and
// tree are removed. Trees that had stayed because the chain's tree was unknown are removed, too.
func TestRefusedStatementIsRemovedWithItsChain(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			h := &fakeHub{answer: stack(-1)}
			root, trees := held(t, h)
			refuse(t, root)
			trees.onDisk[treeID(5)] = true // no statement names it
			r := restartHeld(t, root, h, trees)
			if known := r.Statements(); trees.Has(treeID(5)) != (len(known) == 0) {
				t.Errorf("statements %v, trees %v; want the unnamed tree only while no statement is readable", known,
					trees.onDisk)
			}
			r.Drop(chainID(0))
			if len(trees.onDisk) != 0 || len(r.Refused()) != 0 || len(r.states) != 0 {
				t.Errorf("trees %v, refused %+v; want none", trees.onDisk, r.Refused())
			}
			if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
				t.Errorf("files %v, %v; want none", left, err)
			}
		})
	}
}

// A refused statement of a chain without users is removed by Sweep.
func TestRefusedStatementWithoutHolder(t *testing.T) {
	h := &fakeHub{answer: stack(-1)}
	for name, refuse := range refusals {
		root, trees := held(t, h)
		refuse(t, root)
		r := restart(t, root, h, trees, slog.DiscardHandler)
		r.Sweep()
		if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 || len(trees.onDisk) != 0 ||
			len(r.Refused()) != 0 {
			t.Errorf("%s: files %v, trees %v, %v; want none", name, left, trees.onDisk, err)
		}
	}
}

// A hub of a later version names other trees for the same chains. The statements of the trees on
// this machine stay. Otherwise the next start would remove these trees.
func TestAnotherTreeOfAHeldChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(1)}
		root := t.TempDir()
		trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
		r := restart(t, root, h, trees, slog.DiscardHandler)
		pull(t, r, 1)
		h.answer = func(ctx context.Context, chain string) (*wire.Chain, error) {
			answer, err := stack(1)(ctx, chain)
			if err == nil && len(answer.Above) == 1 {
				s := index.Sign(key, chainID(1), treeID(9))
				answer.Above[0].Statement = &s
			}
			return answer, err
		}
		clear(r.answers.known)
		if got := pull(t, r, 1); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("lazy: %v, want all", got)
		}
		time.Sleep(2 * answerTTL)
		r = restart(t, root, h, trees, slog.DiscardHandler)
		r.Hold(chainID(1))
		r.Sweep()
		if !trees.Has(treeID(1)) || trees.Has(treeID(9)) {
			t.Errorf("trees %v, want only the tree that was fetched first", trees.onDisk)
		}
	})
}

// After HoldAll, neither a renewal nor a Drop removes a tree. (HoldAll is called when the list of
// administrative mounts is lost.)
func TestHoldAllKeepsEveryTree(t *testing.T) {
	both := index.SignAll([]ed25519.PrivateKey{key, otherKey}, chainID(0), treeID(0))
	for name, answer := range map[string]func(context.Context, string) (*index.Statement, error){
		"the hub is gone":      gone,
		"the hub has two keys": func(context.Context, string) (*index.Statement, error) { return &both, nil },
	} {
		h := &fakeHub{answer: stack(-1), tree: answer}
		root, trees := held(t, h)
		for _, pinned := range [][]ed25519.PrivateKey{{key, otherKey}, {otherKey}} { // verified, and refused
			r := pinning(t, root, h, trees, pinned...)
			r.HoldAll()
			r.renewStatement(t.Context(), chainID(0))
			r.Hold(chainID(0))
			r.Drop(chainID(0))
			if _, err := os.Stat(statementFile(root)); err != nil || !trees.Has(treeID(0)) {
				t.Fatalf("%s, %d keys are pinned: statement: %v, trees %v; want both kept", name, len(pinned), err,
					trees.onDisk)
			}
		}
	}
}
