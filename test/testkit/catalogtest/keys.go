package catalogtest

import (
	"crypto/ed25519"
	"errors"
	"sync"
	"testing"

	"lighter/hub/catalog"
)

// testKeys: of two processes that start together with keys of their own, the catalog accepts one.
// It accepts other keys only together with one that has signed, or if it is told to forget those.
func testKeys(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	key := func(n byte) ed25519.PrivateKey {
		seed := make([]byte, ed25519.SeedSize)
		seed[0] = n
		return ed25519.NewKeyFromSeed(seed)
	}
	known := func(want bool) {
		t.Helper()
		if got, err := c.HasKeys(ctx); err != nil || got != want {
			t.Errorf("the catalog knows keys: %t, %v, want %t", got, err, want)
		}
	}
	known(false)
	first := 0 // the process whose key was accepted last
	for range 10 {
		must(t, c.ForgetKeys(ctx))
		known(false)
		var both sync.WaitGroup
		var errs [2]error
		for i := range errs {
			both.Go(func() { errs[i] = c.Resign(ctx, []ed25519.PrivateKey{key(byte(i))}) })
		}
		both.Wait()
		if errs[0] != nil {
			first = 1
		} else {
			first = 0
		}
		if errs[first] != nil || !errors.Is(errs[1-first], catalog.ErrOtherKeys) {
			t.Fatalf("two processes with keys of their own: %v, want ErrOtherKeys for one", errs)
		}
		known(true)
	}
	ours, other := key(byte(first)), key(byte(1-first))
	for _, keys := range [][]ed25519.PrivateKey{{ours}, {ours, other}, {other}, {key(2), other}, {key(2)}} {
		must(t, c.Resign(ctx, keys))
	}
	if err := c.Resign(ctx, []ed25519.PrivateKey{ours, other}); !errors.Is(err, catalog.ErrOtherKeys) {
		t.Errorf("keys that were removed: %v, want ErrOtherKeys", err)
	}
	must(t, c.ForgetKeys(ctx))
	must(t, c.Resign(ctx, []ed25519.PrivateKey{ours}))
}
