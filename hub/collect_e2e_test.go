//go:build e2e

package hub_test

import (
	"testing"

	"lighter/hub"
	"lighter/wire"
)

// A process that is killed at any step of a collection leaves nothing that the next one does not
// clean up, and the hub has the same in the end as one that was never killed.
func TestCollectionIsKilled(t *testing.T) {
	// fill makes a hub with images that are removed: one of its own, and one whose pack is rewritten.
	fill := func(h *testHub) {
		h.push("own:1", image(layer(101, 102, 103)))
		h.ready("own:1")
		h.push("sparse:1", image(layer(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)))
		h.ready("sparse:1")
		h.push("keeps:1", image(layer(1, 2)))
		h.ready("keeps:1")
		h.remove("own:1")
		h.remove("sparse:1")
	}
	collect := func(h *testHub) {
		job, err := h.client.Collect(t.Context())
		if err == nil {
			_, err = h.client.AwaitCollection(t.Context(), job.N, func(wire.Progress) {})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config := func() hub.Config {
		c := hubConfig(t)
		c.GC = hub.GC{} // nothing stays
		return c
	}
	undisturbed := config()
	whole := startProcess(t, undisturbed)
	fill(whole.testHub)
	collect(whole.testHub)
	collect(whole.testHub)
	for _, step := range []string{"before trees", "removed trees", "removed layers", "after chains", "removed packs",
		"removed rewrite", "after rewrite", "before renew", "after renew", "removed rewritten"} {
		t.Run(step, func(t *testing.T) {
			c := config()
			t.Setenv(killEnv, step)
			killed := startProcess(t, c)
			fill(killed.testHub)
			if _, err := killed.client.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := killed.cmd.Wait(); err == nil {
				t.Fatal("the process has ended by itself")
			}
			t.Setenv(killEnv, "")
			again := startProcess(t, c)
			collect(again.testHub)
			collect(again.testHub)
			fetchTree(t, again.client, again.ready("keeps:1").Chain, true)
			wantSame(t, c, undisturbed)
		})
	}
}
