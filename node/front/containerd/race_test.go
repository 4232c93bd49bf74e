package containerd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
)

// Concurrent requests for one chain make one lazy snapshot, which holds its chain once.
func TestManyPreparesOfOneChain(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := sn.Prepare(t.Context(), fmt.Sprint("key ", i), "", ref(one))
			if !errdefs.IsAlreadyExists(err) {
				t.Errorf("got error %v, want already exists", err)
			}
		})
	}
	wg.Wait()
	if n := chains.holds[one]; n != 1 {
		t.Errorf("the chain of one snapshot is held %d times, want once", n)
	}
	if len(chains.releases) != 0 {
		t.Errorf("released %v, want nothing", chains.releases)
	}
}

// A chain's snapshot is removed while a request claims the chain on another parent. Afterwards the
// chain is held if, and only if, the claim succeeded.
func TestRemovalDuringClaim(t *testing.T) {
	for _, known := range []bool{true, false} {
		one := chainID("1")
		sn, chains := newTest(t, one)
		base, lazy := unpack(t, sn, "base", "", chainID("9")), unpack(t, sn, "1", "", one)
		chains.releases = nil
		chains.onClaim = func() {
			chains.known[one] = known
			if err := sn.Remove(t.Context(), lazy); err != nil {
				t.Error(err)
			}
		}
		_, err := sn.Prepare(t.Context(), "key", base, ref(one))
		if errdefs.IsAlreadyExists(err) != known || chains.ready[one] != known {
			t.Errorf("known %v: error %v, chain held: %v; want already exists and true if known, else neither", known,
				err, chains.ready[one])
		}
	}
}

// An active snapshot and the lazy snapshot below it are removed while Mounts mounts the tree.
// Afterwards the chain is not held.
func TestRemovalDuringMounts(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	chains.onMount = func() {
		if err := errors.Join(sn.Remove(t.Context(), "key"), sn.Remove(t.Context(), lazy)); err != nil {
			t.Error(err)
		}
	}
	if _, err := sn.Mounts(t.Context(), "key"); err != nil {
		t.Error(err)
	}
	if chains.ready[one] {
		t.Error("the chain is held without a snapshot, want it released")
	}
}

// After concurrent claims, mounts and removals, each chain with a snapshot is ready and held once.
// Other chains are not ready.
func TestClaimsAgainstRemovals(t *testing.T) {
	ids := []string{chainID("1"), chainID("2"), chainID("3")}
	sn, chains := newTest(t, ids[:2]...)
	var wg sync.WaitGroup
	for g := range 8 {
		random := rand.New(rand.NewPCG(uint64(g), 7))
		wg.Go(func() {
			for i := range 25 {
				chain := ids[random.IntN(len(ids))]
				key := fmt.Sprintf("key %d %d", g, i)
				_, err := sn.Prepare(t.Context(), key, "", ref(chain))
				if err == nil { // the chain is unknown
					err = sn.Remove(t.Context(), key)
				} else if errdefs.IsAlreadyExists(err) {
					err = useAndRemove(t, sn, chain, key)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, chain := range ids {
		lazy, err := sn.findLazy(t.Context(), chain, "")
		found := lazy.labels != nil
		if err != nil || found != chains.ready[chain] || (chains.holds[chain] == 1) != found {
			t.Errorf("chain %s: snapshot %v, ready %v, holds %d, error %v; want both and one hold, or nothing at all",
				chain, found, chains.ready[chain], chains.holds[chain], err)
		}
	}
	if err := sn.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
}

// useAndRemove makes a snapshot on a lazy snapshot, and removes both. Another goroutine may have
// removed the lazy snapshot already, or may still use it.
func useAndRemove(t *testing.T, sn *Snapshotter, chain, key string) error {
	name := lazyName(chain, noParent)
	_, err := sn.Prepare(t.Context(), key, name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := sn.Remove(t.Context(), key); err != nil {
		return err
	}
	err = sn.Remove(t.Context(), name)
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	return err
}
