package hub_test

import (
	"bytes"
	"errors"
	"fmt"
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
	"lighter/hub/registry"
	"lighter/wire"
)

// fsck compares the stores of a hub, and repairs them if w says so.
func (h *testHub) fsck(w wire.Fsck) wire.Check {
	h.t.Helper()
	last, err := h.client.Fsck(h.t.Context(), w, func(wire.Progress) {})
	if err != nil {
		h.t.Fatal(err)
	}
	return *last.Check
}

// wantClean fails the test unless the stores are consistent, and all of an image can be read.
func (h *testHub) wantClean(when string, names ...string) {
	h.t.Helper()
	h.idle()
	if check := h.fsck(wire.Fsck{Deep: true}); len(check.Findings) > 0 || check.Objects == 0 || check.Bytes == 0 {
		h.t.Errorf("%s: %+v, want no findings", when, check)
	}
	for _, name := range names {
		if problems := h.problems(name); problems != "" {
			h.t.Errorf("%s: %s: %s", when, name, problems)
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

// Each object that is lost or damaged is found, and made again from the others.
func TestFsckRepairs(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, upperTar))
	h.ready("a:1")
	h.push("b:1", image(lowerTar))
	h.ready("b:1")
	h.wantClean("at first", "a:1", "b:1")
	dir := objectsDir(h.config)
	flip := func(file string) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		b = bytes.Clone(b)
		b[len(b)/2] ^= 0x40
		return os.WriteFile(file, b, 0o644)
	}
	for _, kind := range []string{"indexes/", "layers/", "locations/", "packs/", ""} {
		for name, c := range map[string]struct {
			change func(file string) error
			deep   bool // needed to find it
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
				t.Errorf("%s: the image is not named: %+v", what, check.Findings)
			}
			for _, f := range check.Findings { // the remedy has to find it again
				if wants := strings.Contains(f.Remedy, "--deep --repair"); wants != (c.deep || kind == "") {
					t.Errorf("%s: the remedy is %q", what, f.Remedy)
				}
			}
			if check = h.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 {
				t.Errorf("%s: not repaired: %s", what, findings(check))
			}
			h.wantClean("after the repair of "+what, "a:1", "b:1")
		}
	}
}

// What cannot be made again is named with its images and a remedy, and can be repaired after that.
func TestFsckNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	both := image(lowerTar, upperTar)
	h.push("a:1", both)
	h.ready("a:1")
	h.idle()
	dir := objectsDir(h.config)
	for _, key := range files(t, dir) {
		if err := os.Remove(filepath.Join(dir, key)); err != nil {
			t.Fatal(err)
		}
	}
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
		t.Errorf("%d problems are left, in %+v", check.Left(), check.Findings)
	}
	h.push("a:1", both)
	h.ready("a:1")
	if check = h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("after the push: %s", findings(check))
	}
	h.wantClean("after the push", "a:1")
}

// An object that the catalog does not know is deleted if it is old and nobody has claimed it.
func TestFsckDeletesUnknownObjects(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar))
	h.ready("a:1")
	h.idle()
	before := files(t, objectsDir(h.config))
	unknown := map[string]string{}
	ages := map[string]time.Duration{"old": 25 * time.Hour, "claimed": 25 * time.Hour, "young": time.Hour}
	for name, age := range ages {
		key := objects.PackKey(chunk.Sum([]byte(name)))
		file := filepath.Join(objectsDir(h.config), key)
		write(t, file, []byte(name))
		at := time.Now().Add(-age)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
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
		t.Errorf("during a backup: %s", findings(check))
	}
	has("during a backup", "old", "claimed", "young")
	if err := h.Catalog().Claims.EndHold(t.Context(), "backup"); err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || len(check.Findings) != 1 {
		t.Errorf("after the repair: %s", findings(check))
	}
	has("after the repair", "claimed", "young")
}

// A sweep deletes unknown objects and repairs missing ones. It goes on where the last one was.
func TestSweep(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, upperTar))
	got := h.ready("a:1")
	h.idle()
	dir := objectsDir(h.config)
	first, last := objects.IndexKey(chunk.ID{}), objects.PackKey(chunk.Sum([]byte("unknown")))
	age := func() {
		t.Helper()
		for _, key := range []string{first, last} {
			write(t, filepath.Join(dir, key), []byte("unknown"))
			at := time.Now().Add(-25 * time.Hour)
			if err := os.Chtimes(filepath.Join(dir, key), at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	sweep := func() {
		t.Helper()
		if _, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: "sweep", Key: "all objects"}, 0); err != nil {
			t.Fatal(err)
		}
		h.idle()
	}
	has := func(key string) bool { return slices.Contains(files(t, dir), key) }
	age()
	lost := filepath.Join(dir, "indexes", got.Tree+".zst")
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	sweep()
	if has(first) || has(last) {
		t.Error("the sweep has not deleted unknown objects")
	}
	h.wantClean("after the sweep", "a:1")
	age()
	h.sweptUntil(objects.LayerKey(""))
	sweep()
	if !has(first) || has(last) {
		t.Errorf("the sweep began elsewhere: the bucket has the first one: %t, and the last one: %t",
			has(first), has(last))
	}
	sweep()
	if has(first) {
		t.Error("the next sweep has not begun anew")
	}
	h.wantClean("in the end", "a:1")
}

// A lost pack that was kept for nodes with older locations is forgotten: it cannot be made again.
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

// A sweep does not empty a bucket of which the catalog knows little: it may be another hub's.
func TestSweepSparesAnotherBucket(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, upperTar))
	h.ready("a:1")
	h.idle()
	dir := objectsDir(h.config)
	unknown := map[string]bool{}
	for i := range 20 {
		key := objects.PackKey(chunk.Sum([]byte{byte(i)}))
		write(t, filepath.Join(dir, key), []byte("unknown"))
		at := time.Now().Add(-25 * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, key), at, at); err != nil {
			t.Fatal(err)
		}
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
	if _, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: "sweep", Key: "all objects"}, 0); err != nil {
		t.Fatal(err)
	}
	h.idle()
	if n := left(); n != len(unknown) {
		t.Errorf("the sweep has left %d of %d objects that another catalog may know", n, len(unknown))
	}
	if check := h.fsck(wire.Fsck{}); check.Left() != int64(len(unknown)) ||
		!strings.Contains(findings(check), "if this is the right catalog") {
		t.Errorf("findings %s, want the objects with a warning", findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || left() != 0 {
		t.Errorf("after the repair: %d objects, %s", left(), findings(check))
	}
	h.wantClean("after the repair", "a:1")
}

// Names differ after a restore, if catalog and registry were copied at different times. The catalog
// then follows the registry: it forgets names whose manifests are missing, and gets those that it
// lacks.
func TestFsckComparesNames(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("stays:1", image(lowerTar))
	h.push("gone:1", image(lowerTar))
	moved := h.push("moved:old", image(upperTar))
	h.push("moved:1", image(lowerTar))
	parts := h.pushIndex("index:1", part{image: image(lowerTar)}, part{image: image(upperTar)})
	h.push("index:root", image(lowerTar, upperTar))
	for _, name := range []string{"stays:1", "gone:1", "moved:old", "moved:1", "index:1", "index:root"} {
		h.ready(name)
	}
	h.wantClean("at first", "stays:1", "gone:1")
	repository := func(name string) registry.Repository { return h.Registry().Repository(name) }
	m, err := repository("moved").Manifest(t.Context(), moved.String())
	if err == nil {
		err = errors.Join(repository("gone").Delete(t.Context(), "1"),
			repository("moved").PutManifest(t.Context(), "1", m),
			repository("moved").PutManifest(t.Context(), "new", m),
			repository("index").Delete(t.Context(), parts[0].String()))
	}
	if err != nil {
		t.Fatal(err)
	}
	check := h.fsck(wire.Fsck{})
	if check.Left() != 4 {
		t.Errorf("%d problems are found, want 4: %s", check.Left(), findings(check))
	}
	var images []string
	for _, f := range check.Findings {
		images = append(images, f.Images...)
	}
	if slices.Sort(images); !slices.Equal(images, []string{"gone:1", "index:1", "moved:1", "moved:new"}) {
		t.Errorf("images %v in %s", images, findings(check))
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.wantClean("after the repair", "stays:1", "moved:1", "moved:new", "index:1", "index:root")
	if images := h.settled("gone:1"); len(images) != 0 {
		t.Errorf("the catalog still has %+v", images)
	}
	if images := h.settled("index:1"); len(images) != 1 || images[0].Digest != parts[1].String() {
		t.Errorf("the index stands for %+v, want %s", images, parts[1])
	}
	if got := h.settled("moved:1"); len(got) != 1 || got[0].Digest != moved.String() {
		t.Errorf("the moved name stands for %+v, want %s", got, moved)
	}
}

// A repair does not remove the names of a hub whose registry is not there, before a user confirms
// it.
func TestFsckSparesNamesWithoutARegistry(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	const images = 10
	for i := range images {
		h.push(fmt.Sprintf("a:%d", i), image(lowerTar))
		h.ready(fmt.Sprintf("a:%d", i))
	}
	h.wantClean("at first", "a:0")
	names := func(when string, want int) {
		t.Helper()
		if got, err := h.client.Images(t.Context(), ""); err != nil || len(got) != want {
			t.Errorf("%s: %d images (%v), want %d", when, len(got), err, want)
		}
	}
	tags := filepath.Join(registryDir(h.config), "docker", "registry", "v2", "repositories")
	if err := os.Rename(tags, tags+".away"); err != nil {
		t.Fatal(err)
	}
	const warning = "if this is the right registry"
	for _, w := range []wire.Fsck{{}, {Repair: true}} {
		if text := findings(h.fsck(w)); !strings.Contains(text, warning) || !strings.Contains(text, "--confirm") {
			t.Errorf("%+v: findings %s, want the names with a warning", w, text)
		}
	}
	names("without the registry", images)
	if err := os.Rename(tags+".away", tags); err != nil {
		t.Fatal(err)
	}
	h.wantClean("with the registry", "a:0")
	for i := range images - 1 {
		if err := h.Registry().Repository("a").Delete(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != images-1 {
		t.Errorf("without a confirmation: %s, want %d problems", findings(check), images-1)
	}
	names("without a confirmation", images)
	if check := h.fsck(wire.Fsck{Repair: true, Confirm: true}); check.Left() != 0 {
		t.Errorf("with a confirmation: %s", findings(check))
	}
	names("with a confirmation", 1)
	h.wantClean("in the end", "a:9")
}

// A name that is just being changed does not differ.
func TestFsckSparesChangingNames(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar))
	h.ready("a:1")
	h.idle()
	settled, err := h.Images().Changing(t.Context(), "a", "1")
	if err == nil {
		err = h.Registry().Repository("a").Delete(t.Context(), "1")
	}
	if err != nil {
		t.Fatal(err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); len(check.Findings) != 0 {
		t.Errorf("during the change: %s", findings(check))
	}
	settled()
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 || len(check.Findings) != 1 {
		t.Errorf("after the change: %s", findings(check))
	}
}

// sweptUntil makes the next sweep go on after a key.
func (h *testHub) sweptUntil(place string) {
	h.t.Helper()
	ctx, checks := h.t.Context(), h.Catalog()
	n, err := checks.Jobs.Add(ctx, catalog.Job{Kind: "another kind", Key: "x"}, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	j, err := checks.Jobs.Claim(ctx, h.Owner(), []catalog.Slot{{Kind: "another kind"}}, time.Hour)
	if err != nil || j.N != n {
		h.t.Fatal(j, err)
	}
	state, err := checks.Checks.Get(ctx, "sweep")
	if err != nil {
		h.t.Fatal(err)
	}
	state.Place = place
	if err := checks.Checks.Set(ctx, j.Lease(), "sweep", state); err != nil {
		h.t.Fatal(err)
	}
	if _, err := checks.Jobs.End(ctx, j.Lease(), catalog.Outcome{State: wire.JobDone}); err != nil {
		h.t.Fatal(err)
	}
}

// A scrub finds damage that sizes do not show, and repairs it. It reads every object in its turn.
func TestScrub(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.ScrubDays = 1 })
	h.push("a:1", image(lowerTar, upperTar))
	h.ready("a:1")
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
		if _, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: "scrub", Key: "all objects"}, 0); err != nil {
			t.Fatal(err)
		}
		h.idle()
		state, err := h.Catalog().Checks.Get(t.Context(), "scrub")
		if err != nil {
			t.Fatal(err)
		}
		if state.Ended.IsZero() {
			if state.Place == "" || state.Objects <= read {
				t.Fatalf("the scrub does not go on: %+v", state)
			}
			read = state.Objects
			continue
		}
		if state.Objects < int64(damaged) || state.Errors == 0 || read == 0 {
			t.Errorf("the scrub has read %d objects in several jobs, and found %d errors", state.Objects, state.Errors)
		}
		h.wantClean("after the scrub", "a:1")
		return
	}
	t.Error("the scrub does not end")
}

// A repair that is interrupted at any point goes on at the next start of the hub.
func TestRepairIsInterrupted(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, upperTar))
	h.ready("a:1")
	h.idle()
	dir := objectsDir(h.config)
	for delay := time.Duration(0); delay < 200*time.Millisecond; delay = delay*2 + 5*time.Millisecond {
		for _, key := range files(t, dir) {
			if err := os.Remove(filepath.Join(dir, key)); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = h.client.Fsck(t.Context(), wire.Fsck{Repair: true}, func(wire.Progress) {}) // it is cut
		}()
		time.Sleep(delay) // the test holds wherever this ends
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
