package hub_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/wire"
)

// runCheck runs a job that checks objects, and waits for its end.
func (h *testHub) runCheck(kind string) {
	h.t.Helper()
	if _, err := h.Catalog().Jobs.Add(h.t.Context(), catalog.Job{Kind: kind, Key: "all objects"}, 0); err != nil {
		h.t.Fatal(err)
	}
	h.idle()
}

// A sweep deletes unknown objects and makes missing ones again. It goes on where an interrupted
// sweep has stopped. After a complete sweep, it begins with the first key.
func TestSweep(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	got := h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	dir := objectsDir(h.config)
	first, last := objects.IndexKey(chunk.ID{}), objects.PackKey(chunk.Sum([]byte("unknown")))
	storeUnknown := func() {
		h.storeUnknown(first, 25*time.Hour)
		h.storeUnknown(last, 25*time.Hour)
	}
	has := func(key string) bool { return slices.Contains(files(t, dir), key) }
	storeUnknown()
	lost := filepath.Join(dir, "indexes", got.Tree+".zst")
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	h.runCheck("sweep")
	if has(first) || has(last) {
		t.Error("the sweep has not deleted unknown objects")
	}
	h.wantClean("after the sweep", "a:1")
	storeUnknown()
	h.sweptUntil(objects.LayerKey(""))
	h.runCheck("sweep")
	if !has(first) || has(last) {
		t.Errorf("after a sweep from the layer records on: %s exists: %t, want true; %s exists: %t, want false",
			first, has(first), last, has(last))
	}
	h.runCheck("sweep")
	if has(first) {
		t.Errorf("the next sweep has not deleted %s, so it has not begun at the first key", first)
	}
	h.wantClean("in the end", "a:1")
}

// sweptUntil makes the next sweep continue after a key.
func (h *testHub) sweptUntil(place string) {
	h.t.Helper()
	ctx, c := h.t.Context(), h.Catalog()
	n, err := c.Jobs.Add(ctx, catalog.Job{Kind: "another kind", Key: "x"}, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	j, err := c.Jobs.Claim(ctx, h.Owner(), []catalog.Slot{{Kind: "another kind"}}, time.Hour)
	if err != nil || j.N != n {
		h.t.Fatalf("claimed job %+v, %v, want job %d", j, err, n)
	}
	state, err := c.Checks.Get(ctx, "sweep")
	if err != nil {
		h.t.Fatal(err)
	}
	state.Place = place
	if err := c.Checks.Set(ctx, j.Lease(), "sweep", state); err != nil {
		h.t.Fatal(err)
	}
	if _, err := c.Jobs.End(ctx, j.Lease(), catalog.Outcome{State: wire.JobDone}); err != nil {
		h.t.Fatal(err)
	}
}

// A sweep goes on after the last key of an interrupted sweep, also if no object can have that key.
func TestSweepGoesOnAfterAnyKey(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	tree := h.pushReady("a:1", image(lowerTar, upperTar)).Tree
	h.idle()
	swept := func() int64 {
		state, err := h.Catalog().Checks.Get(t.Context(), "sweep")
		if err != nil {
			t.Fatal(err)
		}
		return state.Objects
	}
	all := files(t, objectsDir(h.config))
	for _, after := range []string{"", "indexes/" + tree, "indexes/" + tree + ".zst", "layers/0 README", "packs/README",
		"packs/g", "q"} {
		want := int64(0)
		for _, key := range all {
			if key > after {
				want++
			}
		}
		h.sweptUntil(after)
		before := swept()
		h.runCheck("sweep")
		if got := swept() - before; got != want {
			t.Errorf("after %q the sweep compared %d objects, want %d of %d", after, got, want, len(all))
		}
	}
}

// If more than a few objects, and most of those that a sweep has compared until now, are unknown to
// the catalog, the sweep deletes no more of them: the bucket may be another hub's.
func TestSweepSparesAnotherBucket(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	dir := objectsDir(h.config)
	unknown := map[string]bool{}
	for i := range 20 {
		key := objects.PackKey(chunk.Sum([]byte{byte(i)}))
		h.storeUnknown(key, 25*time.Hour)
		unknown[key] = true
	}
	left := func() (n int) {
		for _, key := range files(t, dir) {
			if unknown[key] {
				n++
			}
		}
		return n
	}
	h.runCheck("sweep")
	if n := left(); n != len(unknown) {
		t.Errorf("the sweep has left %d of %d objects that another catalog may know, want all", n, len(unknown))
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != int64(len(unknown)) ||
		!strings.Contains(findings(check), "if this is the right catalog") {
		t.Errorf("findings %s, want the objects with a warning", findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || left() != 0 {
		t.Errorf("after the repair, %d unknown objects are left, want none: %s", left(), findings(check))
	}
	h.wantClean("after the repair", "a:1")
}

// A scrub reads every object, in several jobs, and repairs damage that sizes do not show.
func TestScrub(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.ScrubDays = 1 })
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	dir := objectsDir(h.config)
	damaged := 0
	for _, key := range files(t, dir) {
		damage(t, filepath.Join(dir, key))
		damaged++
	}
	h = h.restart() // nothing is cached
	read := int64(0)
	for range 10 {
		h.runCheck("scrub")
		state, err := h.Catalog().Checks.Get(t.Context(), "scrub")
		if err != nil {
			t.Fatal(err)
		}
		if state.Ended.IsZero() {
			if state.Place == "" || state.Objects <= read {
				t.Fatalf("the scrub has the state %+v, want more than %d objects read", state, read)
			}
			read = state.Objects
			continue
		}
		if state.Objects < int64(damaged) || state.Errors == 0 || read == 0 {
			t.Errorf("the scrub has read %d objects and found %d errors, want %d objects in several jobs, and errors",
				state.Objects, state.Errors, damaged)
		}
		h.wantClean("after the scrub", "a:1")
		return
	}
	t.Error("the scrub does not end")
}
