package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// pinning returns the resolver of a node that starts on root and pins keys.
func pinning(t *testing.T, root string, h *fakeHub, trees *fakeTrees, pinned ...ed25519.PrivateKey) *Resolver {
	t.Helper()
	var text []string
	for _, key := range pinned {
		text = append(text, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	keys, err := NewKeys(root, text, h)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, h, Config{Root: root, Trees: trees, Keys: keys, Log: slog.New(slog.DiscardHandler)})
}

// A statement that only the hub's old key has signed is replaced once the hub signs with the new
// key, too. From then on it can be verified with the new key alone.
func TestStatementsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, replacement := key, otherKey
		signing := []ed25519.PrivateKey{old}
		var mu sync.Mutex // guards signing, down and asked
		var down error
		asked := 0
		change := func(fn func()) { mu.Lock(); defer mu.Unlock(); fn() }
		h := &fakeHub{tree: func(context.Context, string) (*index.Statement, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			s := index.SignAll(signing, chainID(0), treeID(0))
			return &s, down
		}}
		root := t.TempDir()
		trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
		r := pinning(t, root, h, trees, old, replacement)
		fetchHeld(t, r, statement(0))
		missing := func() []string { return r.Signers()[1].Missing }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.RenewStatements(ctx); close(ended) }()
		synctest.Wait()
		if !slices.Equal(missing(), []string{chainID(0)}) || r.Signers()[0].Signed != 1 {
			t.Errorf("the hub has one key: %+v, want a missing signature", r.Signers())
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if asked < 5 || asked > 40 {
			t.Errorf("asked %d times in a day, want 5 to 40", asked)
		}
		change(func() { down, signing = errors.New("down"), append(signing, replacement) })
		time.Sleep(2 * maxRenewalPause)
		synctest.Wait()
		if len(missing()) != 1 {
			t.Errorf("the hub is down: %+v, want a missing signature", r.Signers())
		}
		change(func() { down = nil })
		time.Sleep(2 * maxRenewalPause)
		synctest.Wait()
		if len(missing()) != 0 {
			t.Errorf("the hub has both keys: %+v, want no missing signature", r.Signers())
		}
		before := asked
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if asked != before {
			t.Errorf("asked %d times about a complete statement, want 0", asked-before)
		}
		cancel()
		<-ended
		if again := pinning(t, root, h, trees, replacement); again.statement(chainID(0)) == nil {
			t.Error("with the new key alone the statement is refused")
		}
	})
}

// A statement is not replaced by a statement about another tree. If a chain is dropped during the
// renewal, its new statement is not stored.
func TestStatementsThatAreNotRenewed(t *testing.T) {
	answer := index.SignAll([]ed25519.PrivateKey{key, otherKey}, chainID(0), treeID(1))
	h := &fakeHub{tree: func(context.Context, string) (*index.Statement, error) { return &answer, nil }}
	r := pinning(t, t.TempDir(), h, &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}, key, otherKey)
	fetchHeld(t, r, statement(0))
	r.renewStatement(t.Context(), chainID(0))
	if s := r.statement(chainID(0)); s.Tree != treeID(0) || len(s.Further) > 0 {
		t.Errorf("renewed by a statement about another tree: %+v", s)
	}
	answer = index.SignAll([]ed25519.PrivateKey{key, otherKey}, chainID(0), treeID(0))
	h.tree = func(context.Context, string) (*index.Statement, error) { r.Drop(chainID(0)); return &answer, nil }
	r.renewStatement(t.Context(), chainID(0))
	if s := r.statement(chainID(0)); s != nil {
		t.Errorf("a dropped chain has a statement again: %+v", s)
	}
}
