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

// fsck compares the stores of a hub, and repairs them if w.Repair is set.
func (h *testHub) fsck(w wire.Fsck) wire.Check {
	h.t.Helper()
	last, err := h.client.Fsck(h.t.Context(), w, silent)
	if err != nil {
		h.t.Fatal(err)
	}
	return *last.Check
}

// wantClean fails the test unless the stores are consistent and the images with these names can be
// read completely.
func (h *testHub) wantClean(when string, names ...string) {
	h.t.Helper()
	h.idle()
	if check := h.fsck(wire.Fsck{Deep: true}); len(check.Findings) > 0 || check.Objects == 0 || check.Bytes == 0 {
		h.t.Errorf("%s: %+v, want no findings", when, check)
	}
	for _, name := range names {
		if problems := h.problems(name); problems != "" {
			h.t.Errorf("%s: verify %s: %s", when, name, problems)
		}
		images, err := h.client.Images(h.t.Context(), name)
		if err != nil || len(images) != 1 {
			h.t.Fatalf("%s: %d images (%v), want 1", name, len(images), err)
		}
		if _, chunks := h.fetchTree(images[0].Chain); len(chunks) == 0 {
			h.t.Errorf("%s: %s has no chunks", when, name)
		}
	}
}

// findings returns the findings as text.
func findings(check wire.Check) string {
	var b strings.Builder
	for _, f := range check.Findings {
		b.WriteString(f.Problem + "\n" + strings.Join(f.Examples, "\n") + "\n" + f.Remedy + "\n")
	}
	return b.String()
}

// fsck finds each missing or damaged object. A repair makes it again from other objects and the
// registry.
func TestFsckRepairs(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.pushReady("b:1", image(lowerTar))
	h.wantClean("at first", "a:1", "b:1")
	dir := objectsDir(h.config)
	flip := func(file string) error {
		damage(t, file)
		return nil
	}
	for _, kind := range []string{"indexes/", "layers/", "locations/", "packs/", ""} {
		for name, c := range map[string]struct {
			change func(file string) error
			deep   bool // only a deep check finds the change
		}{
			"missing":   {os.Remove, false},
			"truncated": {func(file string) error { return os.Truncate(file, 10) }, kind == "layers/"},
			"flipped":   {flip, true},
		} {
			n := int64(0)
			for _, key := range files(t, dir) {
				if !strings.HasPrefix(key, kind) {
					continue
				}
				if err := c.change(filepath.Join(dir, key)); err != nil {
					t.Fatal(err)
				}
				n++
			}
			what := name + " " + kind
			h = h.restart() // nothing is cached
			check := h.fsck(wire.Fsck{Deep: c.deep || kind == ""})
			if got := check.Left(); got != n || n == 0 {
				t.Errorf("%s: %d problems are found, want %d: %s", what, got, n, findings(check))
			}
			names := func(f wire.Finding) bool { return slices.Contains(f.Images, "a:1") }
			if !slices.ContainsFunc(check.Findings, names) {
				t.Errorf("%s: findings %+v, want one that names a:1", what, check.Findings)
			}
			for _, f := range check.Findings { // the remedy has to find the object again
				if wants := strings.Contains(f.Remedy, "--deep --repair"); wants != (c.deep || kind == "") {
					t.Errorf("%s: the remedy is %q, want --deep in it: %t", what, f.Remedy, c.deep || kind == "")
				}
			}
			if check = h.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 {
				t.Errorf("%s: not repaired: %s", what, findings(check))
			}
			h.wantClean("after the repair of "+what, "a:1", "b:1")
		}
	}
}

// An object that cannot be made again is reported with its images and a remedy. The remedy is a
// push of the images: then a repair succeeds.
func TestFsckNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	both := image(lowerTar, upperTar)
	h.pushReady("a:1", both)
	h.idle()
	h.loseObjects()
	manifest, _, _ := both.build()
	blob := h.blobFile(manifest.Layers[0].Digest)
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	check := h.fsck(wire.Fsck{Repair: true})
	text := findings(check)
	for _, want := range []string{manifest.Layers[0].Digest.String() + " is missing", "packs/",
		"chunks were not found", "image a:1", "push the images again"} {
		if !strings.Contains(text, want) {
			t.Errorf("findings %s, want %q among them", text, want)
		}
	}
	if check.Left() == 0 || !slices.Contains(check.Findings[0].Images, "a:1") {
		t.Errorf("%d problems are left, in %+v, want some, of a:1", check.Left(), check.Findings)
	}
	h.pushReady("a:1", both)
	if check = h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("after the push: %s", findings(check))
	}
	h.wantClean("after the push", "a:1")
}

// An object that the catalog does not know is deleted if it is older than a day, nobody has claimed
// it, and no backup is being made.
func TestFsckDeletesUnknownObjects(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	h.idle()
	before := files(t, objectsDir(h.config))
	unknown := map[string]string{}
	ages := map[string]time.Duration{"old": 25 * time.Hour, "claimed": 25 * time.Hour, "young": time.Hour}
	for name, age := range ages {
		key := objects.PackKey(chunk.Sum([]byte(name)))
		h.storeUnknown(key, age)
		unknown[name] = key
	}
	claim := catalog.Claim{Owner: h.Owner(), Keys: []string{unknown["claimed"]}}
	if err := h.Catalog().Claims.Acquire(t.Context(), claim, time.Hour); err != nil {
		t.Fatal(err)
	}
	has := func(when string, names ...string) {
		t.Helper()
		want := slices.Clone(before)
		for _, name := range names {
			want = append(want, unknown[name])
		}
		slices.Sort(want)
		if got := files(t, objectsDir(h.config)); !slices.Equal(got, want) {
			t.Errorf("%s: the bucket has %v, want %v", when, got, want)
		}
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != 1 || !strings.Contains(findings(check), unknown["old"]) {
		t.Errorf("findings %s, want %s", findings(check), unknown["old"])
	}
	has("before the repair", "old", "claimed", "young")
	if err := h.Catalog().Claims.Hold(t.Context(), "backup", time.Hour); err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 1 || !strings.Contains(findings(check), "a backup") {
		t.Errorf("during a backup: %s, want the object left because of the backup", findings(check))
	}
	has("during a backup", "old", "claimed", "young")
	if err := h.Catalog().Claims.EndHold(t.Context(), "backup"); err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || len(check.Findings) != 1 {
		t.Errorf("the repair: %s, want one finding, repaired", findings(check))
	}
	has("after the repair", "claimed", "young")
}

// A lost pack has chunks that an image needs, and chunks that no image needs any more. A repair
// makes the needed chunks again in another pack. A collection forgets the lost pack.
func TestFsckOfPackWithUnneededChunks(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	keeps := h.laid("keeps:1", image(layer(seeds(2, 40)...)))
	h.remove("goes:1")
	if done := h.collect(0); done.Rewritten != 0 || done.Packs != 0 {
		t.Fatalf("the collection has done %+v, want the pack unchanged", done)
	}
	for pack := range h.packsOf(keeps.Tree) {
		if err := os.Remove(filepath.Join(objectsDir(h.config), objects.PackKey(pack))); err != nil {
			t.Fatal(err)
		}
	}
	check := h.fsck(wire.Fsck{Repair: true})
	if text := findings(check); check.Left() != 1 || !strings.Contains(text, "run lighter gc") {
		t.Errorf("%d problems are left, want the pack, which a collection forgets: %s", check.Left(), text)
	}
	if problems := h.problems("keeps:1"); problems != "" {
		t.Errorf("after the repair: %s", problems)
	}
	h.idle()
	h.collect(0)
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("after the collection: %s", findings(check))
	}
	h.wantClean("after the collection", "keeps:1")
}

// A lost pack that was kept only for nodes with older locations cannot be made again. A repair
// forgets it.
func TestFsckForgetsLostRewrittenPacks(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	keeps := h.laid("keeps:1", image(layer(3, 4)))
	before := h.packsOf(keeps.Tree)
	h.Collector().Keep = time.Hour
	h.remove("goes:1")
	if done := h.collect(0); done.Rewritten != 1 {
		t.Fatalf("the collection has done %+v, want one rewritten pack", done)
	}
	for pack := range before {
		if err := os.Remove(filepath.Join(objectsDir(h.config), objects.PackKey(pack))); err != nil {
			t.Fatal(err)
		}
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != 1 {
		t.Errorf("%d problems are found, want the pack: %s", check.Left(), findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.wantClean("after the repair", "keeps:1")
}

// A repair that is interrupted by the end of the hub, at any point, can be completed after the next
// start.
func TestRepairIsInterrupted(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	for delay := time.Duration(0); delay < 200*time.Millisecond; delay = delay*2 + 5*time.Millisecond {
		h.loseObjects()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = h.client.Fsck(t.Context(), wire.Fsck{Repair: true}, silent) // the end of the hub cuts the request
		}()
		time.Sleep(delay) // the repair may have come to any point
		h.stop()
		<-ended
		h = runHub(t, openHub(t, h.config))
		h.idle()
		if check := h.fsck(wire.Fsck{Repair: true, Deep: true}); check.Left() != 0 {
			t.Errorf("interrupted after %v: %s", delay, findings(check))
		}
		h.wantClean("after "+delay.String(), "a:1")
	}
}

// A blob of another size is found without being read. A push alone does not bring it back, so the
// remedy is to delete it first.
func TestBlobOfAnotherSize(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(upperTar))
	layer, b := layerOf(upperTar)
	if err := os.WriteFile(h.blobFile(layer), append(slices.Clone(b), "more"...), 0o600); err != nil {
		t.Fatal(err)
	}
	check := h.fsck(wire.Fsck{})
	if text := findings(check); check.Left() != 1 || !strings.Contains(text, "lighter fsck --deep --repair") {
		t.Errorf("findings %s, want the blob, and the command that deletes it", text)
	}
	h.fsck(wire.Fsck{Deep: true, Repair: true})
	h.pushReady("a:1", image(upperTar))
	h.wantClean("after the remedy", "a:1")
}

// Deep checks and scrubs read the blobs of the registry, too. A repair deletes a damaged blob: then
// the hub reads it from the registry that it came from, or it can be pushed again.
func TestDamagedBlobsAreFound(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.KeepBlobs, c.ScrubDays = "always", 1 })
	r := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: r.source(), Name: "added:1"})
	h.pushReady("pushed:1", image(upperTar))
	h.pushReady("pushed:2", image(upperTar)) // its layer counts once
	h.config.KeepBlobs = "until-upstream"
	h = h.restart()
	h.Blobs().AskTime = 0 // without time to ask, the collection does not delete the layer
	if _, err := h.collectOnce(); err != nil {
		t.Fatal(err)
	}
	h.wantClean("at first", "added:1", "pushed:1")
	lower, lowerBytes := layerOf(lowerTar)
	upper, _ := layerOf(upperTar)
	damage(t, h.blobFile(lower))
	damage(t, h.blobFile(upper))
	for range 10 {
		h.runCheck("scrub")
		if state, err := h.Catalog().Checks.Get(t.Context(), "scrub"); err != nil || !state.Ended.IsZero() {
			if err != nil || state.Errors != 2 {
				t.Errorf("the scrub has found %+v (%v), want two errors", state, err)
			}
			break
		}
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != 0 {
		t.Errorf("a check that reads nothing: %s, want no problems", findings(check))
	}
	deep := h.fsck(wire.Fsck{Deep: true})
	if text := findings(deep); deep.Left() != 2 || !strings.Contains(text, lower.String()+" is damaged") ||
		!strings.Contains(text, upper.String()+" is damaged") || !strings.Contains(text, "--deep --repair") {
		t.Errorf("findings %s, want both layers", text)
	}
	if !h.stores(lower) || !h.stores(upper) {
		t.Error("deleted without a repair")
	}
	h.loseObjects() // a repair makes them again from the layer of the other registry
	check := h.fsck(wire.Fsck{Deep: true, Repair: true})
	if f := check.Findings[0]; f.Count != 2 || f.Repaired != 1 ||
		!slices.Equal(f.Images, []string{"pushed:1", "pushed:2"}) ||
		!strings.Contains(findings(check), "pushed again") {
		t.Errorf("repaired: %s, want the layer that the other registry has", findings(check))
	}
	h.expectBlob("added", lower, lowerBytes)
	h.pushReady("pushed:1", image(upperTar))
	if check := h.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 {
		t.Errorf("after the push: %s", findings(check))
	}
	h.wantClean("in the end", "added:1", "pushed:1")
}
