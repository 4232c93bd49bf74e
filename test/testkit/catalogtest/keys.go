package catalogtest

import (
	"crypto/ed25519"
	"errors"
	"sync"
	"testing"

	"lighter/hub/catalog"
)

// testKeys shows that the catalog accepts the keys of only one of two processes that start at the
// same time with different keys. Later it accepts other keys only together with a key that it
// knows, or after ForgetKeys.
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
			t.Errorf("whether the catalog knows keys: got %t (%v), want %t", got, err, want)
		}
	}
	known(false)
	accepted := 0 // the process whose key was accepted in the last round
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
			accepted = 1
		} else {
			accepted = 0
		}
		if errs[accepted] != nil || !errors.Is(errs[1-accepted], catalog.ErrOtherKeys) {
			t.Fatalf("two processes with different keys: got the errors %v, want one ErrOtherKeys", errs)
		}
		known(true)
	}
	ours, other := key(byte(accepted)), key(byte(1-accepted))
	for _, keys := range [][]ed25519.PrivateKey{{ours}, {ours, other}, {other}, {key(2), other}, {key(2)}} {
		must(t, c.Resign(ctx, keys))
	}
	if err := c.Resign(ctx, []ed25519.PrivateKey{ours, other}); !errors.Is(err, catalog.ErrOtherKeys) {
		t.Errorf("keys that were removed: %v, want ErrOtherKeys", err)
	}
	must(t, c.ForgetKeys(ctx))
	must(t, c.Resign(ctx, []ed25519.PrivateKey{ours}))
}
