//go:build e2e

package hub_test

import (
	"testing"

	"lighter/hub"
)

// If the disk has no room for rewritten packs, a collection leaves the packs as they are, and
// completes its other steps. The next collection rewrites the packs.
func TestRewritingFillsTheDisk(t *testing.T) {
	t.Parallel()
	c := sceneConfig(t, scene{}, setupPostgres) // the disk has little but the scratch space
	c.GC = hub.GC{}
	fill := smallDisk(t, c.Root)
	h := runHub(t, openHub(t, c))
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	h.laid("keeps:1", image(layer(3, 4)))
	h.remove("goes:1")
	var free func()
	h.Collector().Step = func(name string) {
		switch {
		case name == "before rewrite":
			free = fill()
		case name == "after rewrite" && free != nil:
			free()
		}
	}
	if done := h.collect(0); free == nil || done.Rewritten != 0 || done.DeadBytes == 0 || done.At.IsZero() {
		t.Errorf("on the full disk, the collection has done %+v, want no rewritten pack", done)
	}
	h.Collector().Step = func(string) {}
	if done := h.collect(0); done.Rewritten != 1 || done.DeadBytes != 0 {
		t.Errorf("with room, the collection has done %+v, want one rewritten pack", done)
	}
	h.wantClean("in the end", "keeps:1")
}
