package hub_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/retention"
	"lighter/hub/wants"
	"lighter/wire"
)

// startWants starts a hub that does not wait before it asks a registry again whether an image is
// gone.
func startWants(t *testing.T, change ...func(*hub.Config)) *testHub {
	t.Helper()
	c := hubConfig(t)
	for _, f := range change {
		f(&c)
	}
	h := openHub(t, c)
	h.Wants().Confirm = 0
	return runHub(t, h)
}

// serve makes the registry serve another image under its tag.
func (r *fakeRegistry) serve(t *testing.T, i fakeImage) {
	t.Helper()
	manifest, config, blobs := i.build()
	b, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kind, r.manifest = manifest.MediaType, b
	for _, b := range append(blobs, config) {
		r.blobs[digest.FromBytes(b)] = b
	}
}

// remove removes the registry's tag.
func (r *fakeRegistry) remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
}

// digest returns the digest of the manifest under the tag.
func (r *fakeRegistry) digest() string {
	_, manifest := r.tagged()
	return digest.FromBytes(manifest).String()
}

// counts returns the numbers of GET requests, by last element of the path, and of HEAD requests for
// manifests.
func (r *fakeRegistry) counts() (gets map[string]int, heads int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.asked), r.heads
}

// fail makes the registry answer the next requests for manifests with these statuses.
func (r *fakeRegistry) fail(statuses ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = statuses
}

func (r *fakeRegistry) failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.fails)
}

// look makes a wanter wish for a registry's image.
func (h *testHub) look(wishes ...wants.Wish) {
	h.t.Helper()
	if err := h.Wants().Look(h.t.Context(), wishes...); err != nil {
		h.t.Fatal(err)
	}
}

// eventually waits until a condition holds.
func (h *testHub) eventually(what string, holds func() bool) {
	h.t.Helper()
	for range 1500 {
		if holds() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Fatalf("after 30 s: %s", what)
}

// looked waits until no look is due.
func (h *testHub) looked() {
	h.t.Helper()
	h.eventually("a look has not ended", func() bool {
		jobs, err := h.client.Jobs(h.t.Context(), false)
		return err == nil && !slices.ContainsFunc(jobs, func(j wire.Job) bool { return j.Kind == "look" })
	})
}

// isReady reports whether the hub has an image with a digest ready under a name.
func (h *testHub) isReady(name, digest string) bool {
	images, err := h.client.Images(h.t.Context(), name)
	return err == nil && slices.ContainsFunc(images, func(i wire.Image) bool {
		return i.State == wire.StateReady && i.Digest == digest
	})
}

func (h *testHub) isMissing(name string) bool {
	images, err := h.client.Images(h.t.Context(), name)
	return err == nil && len(images) == 0
}

// An image that a hook wants follows its source: a push there moves it, and a deletion removes it.
// A look at an image that has not moved costs one HEAD request.
func TestWantedImageFollowsItsSource(t *testing.T) {
	t.Parallel()
	h := startWants(t)
	r := startRegistry(t, image(lowerTar))
	wish := wants.Wish{Source: r.source(), By: wants.Hook("harbor"), MayRemove: true}
	h.look(wish, wish) // events may come twice
	first := r.digest()
	h.eventually("the image is not ready", func() bool { return h.isReady(r.name(), first) })
	h.looked()
	gets, heads := r.counts()
	h.look(wish)
	h.looked()
	if g, n := r.counts(); g["1"] != gets["1"] || n != heads+1 {
		t.Errorf("a look at an image that has not moved: %d GET and %d HEAD requests for its manifest, want 0 and 1",
			g["1"]-gets["1"], n-heads)
	}
	r.serve(t, image(lowerTar, upperTar))
	h.look(wish)
	h.eventually("the image has not moved", func() bool { return h.isReady(r.name(), r.digest()) })
	r.remove()
	h.look(wish)
	h.eventually("the image is still there", func() bool { return h.isMissing(r.name()) })
}

// An image stays until nobody wants it: two lists, a hook and a person.
func TestImageStaysWhileSomebodyWantsIt(t *testing.T) {
	t.Parallel()
	h := startWants(t)
	r := startRegistry(t, image(lowerTar))
	a, b := wants.Wish{Source: r.source(), By: wants.List("a")}, wants.Wish{Source: r.source(), By: wants.List("b")}
	hook := wants.Wish{Source: r.source(), By: wants.Hook("harbor"), MayRemove: true}
	h.added(wire.Add{Source: r.source()}) // by hand, before the others
	h.look(a, b, hook)
	h.looked()
	ready := func() bool { return h.isReady(r.name(), r.digest()) }
	drop := func(by string) {
		t.Helper()
		if err := h.Wants().Drop(t.Context(), by, r.name()); err != nil {
			t.Fatal(err)
		}
		h.looked()
	}
	drop(a.By)
	drop(hook.By)
	err := h.client.Remove(t.Context(), r.name())
	if err == nil || !strings.Contains(err.Error(), "list b") || !strings.Contains(err.Error(), "--force") ||
		strings.Contains(err.Error(), "list a") {
		t.Errorf("removal of an image that a list wants: %v, want an error that names list b and --force", err)
	}
	drop(b.By)
	if !ready() {
		t.Fatal("the image has gone although a person wants it")
	}
	h.look(a)
	h.looked()
	if err := h.client.RemoveAnyway(t.Context(), r.name()); err != nil || !h.isMissing(r.name()) {
		t.Errorf("removal with force: %v, want no image", err)
	}
	h.look(a)
	h.eventually("the image has not come back", ready)
	h.looked()
	drop(a.By)
	h.eventually("the image is still there, although nobody wants it", func() bool { return h.isMissing(r.name()) })
}

// A pushed image is wanted by hand, even if lists have wanted its name before.
func TestPushedImageIsWantedByHand(t *testing.T) {
	t.Parallel()
	h := startWants(t)
	r := startRegistry(t, image(lowerTar))
	wish := wants.Wish{Source: r.source(), Name: "mine:1", By: wants.List("a")}
	h.look(wish)
	h.eventually("the image is not ready", func() bool { return h.isReady("mine:1", r.digest()) })
	pushed := h.pushReady("mine:1", image(upperTar))
	if err := h.Wants().Drop(t.Context(), wish.By, "mine:1"); err != nil {
		t.Fatal(err)
	}
	h.looked()
	if !h.isReady("mine:1", pushed.Digest) {
		t.Error("a pushed image has gone although only a list has dropped it")
	}
}

// A registry that fails, or says once that an image is gone, removes nothing.
func TestFailingSourceRemovesNothing(t *testing.T) {
	t.Parallel()
	h := startWants(t)
	r := startRegistry(t, image(lowerTar))
	wish := wants.Wish{Source: r.source(), By: wants.Hook("harbor"), MayRemove: true}
	h.look(wish)
	h.eventually("the image is not ready", func() bool { return h.isReady(r.name(), r.digest()) })
	h.looked()
	for _, failure := range [][]int{{500}, {401}, {403}, {429}, {404, 500}, {404, 200}} {
		r.fail(failure...)
		h.look(wish)
		h.eventually("the registry was not asked", func() bool { return r.failures() == 0 })
		job, err := h.Catalog().Jobs.Open(t.Context(), "look", r.name())
		if err == nil {
			_, err = h.client.CancelJob(t.Context(), job.N)
		}
		h.looked()
		if !h.isReady(r.name(), r.digest()) {
			t.Errorf("answers %v of the registry: the image has gone (%v)", failure, err)
		}
	}
}

// The retention rules keep what a list wants, and say so. They remove what a hook wants.
func TestRetentionKeepsWhatListsWant(t *testing.T) {
	t.Parallel()
	h := startWants(t, func(c *hub.Config) {
		c.RetentionMaxPercent = 100
		c.Retention = []retention.Rule{{Repositories: []string{"**"},
			KeepTags: []retention.Keep{{Patterns: []string{"x"}}}}}
	})
	r := startRegistry(t, image(lowerTar))
	for name, by := range map[string]string{"a:1": wants.List("physics"), "b:1": wants.Hook("harbor")} {
		h.look(wants.Wish{Source: r.source(), Name: name, By: by, ByRules: by != wants.List("physics")})
		h.eventually(name+" is not ready", func() bool { return h.isReady(name, r.digest()) })
	}
	rules := wants.Wish{Source: r.source(), Name: "c:1", By: wants.List("ci"), ByRules: true}
	h.look(rules)
	h.eventually("c:1 is not ready", func() bool { return h.isReady("c:1", r.digest()) })
	h.looked()
	verdicts, err := h.client.Retention(t.Context())
	if err != nil || len(verdicts) != 3 || !strings.Contains(verdicts[0].Why, "it is wanted by list physics") {
		t.Errorf("verdicts %+v, %v, want list physics as the first reason", verdicts, err)
	}
	h.applyRetention()
	if got := h.retained(); got != "a:1" {
		t.Errorf("images %q after the rules, want a:1", got)
	}
	// What a rule has removed comes back only with another digest.
	h.look(rules)
	h.looked()
	if !h.isMissing("c:1") {
		t.Error("an image that a rule has removed is back although its source has not moved")
	}
	r.serve(t, image(upperTar))
	h.look(rules)
	h.eventually("c:1 is not back", func() bool { return h.isReady("c:1", r.digest()) })
}
