package hub_test

import (
	"os"
	"testing"
	"time"

	"lighter/hub/rootdir"
	"lighter/wire"
)

// loseScratch deletes the scratch directory of a hub. It tries again if files are written
// meanwhile.
func (h *testHub) loseScratch() {
	h.t.Helper()
	err := os.RemoveAll(rootdir.Scratch(h.config.Root))
	for range 100 {
		if err == nil {
			return
		}
		err = os.RemoveAll(rootdir.Scratch(h.config.Root))
	}
	h.t.Fatal(err)
}

// If the scratch directory is deleted, work that uses it begins again and succeeds.
func TestScratchIsLost(t *testing.T) {
	t.Parallel()
	opened := openHub(t, hubConfig(t))
	opened.Jobs().RetryDelay = 10 * time.Millisecond
	opened.Starts().Timing.MergeDelay, opened.Starts().Timing.Recompress = 0, 0
	h := runHub(t, opened)
	i := image(lowerTar, startsTar(10))
	r := startRegistry(t, i)
	held, release := r.holdBlobs(t)
	added := h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	h.loseScratch()
	release()
	if err := <-added; err != nil {
		t.Fatalf("the client that waits for the image got %v, want no error", err)
	}
	h.wantReady("a:1", r.manifest)
	h.idle()
	h.loseScratch()
	h.traced(h.extents(h.ready("a:1").Tree), 1, 2)
	h.idle()
	h.loseScratch()
	if problems := h.problems("a:1"); problems != "" {
		t.Error(problems)
	}
	h.loseScratch()
	h.collect(0)
	h = h.restart()
	h.wantClean("after all", "a:1")
	undisturbed := startHub(t)
	undisturbed.Uploads().MinBytes = 1 << 40 // a layer that is split while it is pushed has packs of its own
	undisturbed.pushReady("a:1", i)
	got, want := h.holdings().inventory, undisturbed.holdings().inventory
	if got != want || h.ready("a:1").Tree != undisturbed.ready("a:1").Tree {
		t.Errorf("the hub has %+v, want %+v", got, want)
	}
}
