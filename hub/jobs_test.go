package hub_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/test/testkit/tarball"
	"lighter/wire"

	"lighter/hub"
)

// adding adds an image in the background. The channel gets the result.
func (h *testHub) adding(add wire.Add) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := h.add(add)
		done <- err
	}()
	return done
}

// wantReady fails the test unless a name refers to one image, which has this manifest and is ready.
func (h *testHub) wantReady(name string, manifest []byte) {
	h.t.Helper()
	images := h.settled(name)
	want := digest.FromBytes(manifest)
	if len(images) != 1 || images[0].State != wire.StateReady || images[0].Digest != want.String() {
		h.t.Errorf("%s refers to %+v, want %s, ready", name, images, want)
	}
}

// If an image is accepted for a name that refers to another image, a restart of the hub does not
// lose it.
func TestRestartWhileANameIsCopied(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	r := startRegistry(t, image(upperTar))
	held, release := r.holdBlobs(t)
	h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	h.stop()
	again := runHub(t, openHub(t, h.config))
	awaitHeld(t, held)
	release()
	again.idle()
	again.wantReady("a:1", r.manifest)
}

// The index behind a tag changes while it is copied, and its second version is added: it becomes
// ready.
func TestIndexChangesWhileItIsCopied(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image())
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64}, part{image: image(armTar), platform: arm64})
	held, release := r.holdBlobs(t)
	add := wire.Add{Source: r.source(), Name: "a:1"}
	h.adding(add)
	awaitHeld(t, held)
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64},
		part{image: image(armTar, upperTar), platform: arm64})
	second := h.adding(add)
	awaitHeld(t, held) // the job has begun again with the new index
	release()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// If a platform of an image is added while another one is copied, both become ready.
func TestPlatformIsAddedWhileAnotherIsCopied(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image())
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64}, part{image: image(upperTar), platform: arm64})
	held, release := r.holdBlobs(t)
	first := h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	second := h.adding(wire.Add{Source: r.source(), Name: "a:1", Platform: "linux/arm64"})
	awaitHeld(t, held)
	release()
	for _, done := range []<-chan error{first, second} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := states(h.settled("a:1")); got != "linux/amd64=ready linux/arm64/v8=ready" {
		t.Errorf("the name refers to %s, want both platforms ready", got)
	}
}

// If a job is cancelled, its image fails. A retry of the job makes the image ready. Ended and
// unknown jobs cannot be changed.
func TestCancelAndRetry(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	done := h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	jobs, err := h.client.Jobs(t.Context(), false)
	if err != nil || len(jobs) != 1 || jobs[0].Key != "a:1" || jobs[0].State != wire.JobRunning {
		t.Fatalf("jobs %+v, %v, want one running job of a:1", jobs, err)
	}
	if _, err := h.client.CancelJob(t.Context(), jobs[0].N); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the client of a cancelled job got no error")
	}
	h.idle()
	release()
	if _, err := h.client.RetryJob(t.Context(), jobs[0].N); err != nil {
		t.Fatal(err)
	}
	h.idle()
	h.wantReady("a:1", r.manifest)
	for what, change := range map[string]func() error{
		"retry of an ended job":   func() error { _, err := h.client.RetryJob(t.Context(), jobs[0].N); return err },
		"cancel of an ended job":  func() error { _, err := h.client.CancelJob(t.Context(), jobs[0].N); return err },
		"pause of an unknown job": func() error { _, err := h.client.PauseJob(t.Context(), 1<<40); return err },
	} {
		if err := change(); err == nil {
			t.Errorf("%s succeeded, want an error", what)
		}
	}
}

// If two images have a layer in common, the second one does not wait until the first one, which a
// slow registry delays, is ready.
func TestPushDoesNotWaitForACommonLayer(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	small := tarball.Of(tarball.File("small", noise(78, 5_000)))
	r := startRegistry(t, image(small, tarball.Of(tarball.File("big", noise(77, 60_000)))))
	held, release := r.holdBlobs(t)
	done := h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	h.push("b:1", image(small))
	h.ready("b:1") // the registry still holds the blobs of a:1
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// If two images have a layer in common, and the registry of the first one hangs while it sends the
// layer, the second one becomes ready from another registry.
func TestAddDoesNotWaitForAHungRegistry(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	hangs, other := startRegistry(t, image(lowerTar)), startRegistry(t, image(lowerTar))
	held, release := hangs.holdBlobs(t)
	done := h.adding(wire.Add{Source: hangs.source(), Name: "a:1"})
	awaitHeld(t, held)
	h.added(wire.Add{Source: other.source(), Name: "b:1"})
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// sendSlowly makes a registry send a blob in pieces, with pauses in between: for longer than
// another worker waits without progress. begun has an element for each GET request.
func (r *fakeRegistry) sendSlowly(blob digest.Digest) (begun chan struct{}) {
	begun = make(chan struct{}, 100)
	r.spoil = func(w http.ResponseWriter, req *http.Request, d digest.Digest, b []byte) bool {
		if d != blob || req.Method != http.MethodGet {
			return false
		}
		begun <- struct{}{}
		for piece := range slices.Chunk(b, 256<<10) {
			_, _ = w.Write(piece)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(300 * time.Millisecond):
			case <-req.Context().Done():
				return true
			}
		}
		return true
	}
	return begun
}

// wantReadOnce adds two images with a common new layer from a slow registry, one at each of the
// hubs, and fails the test unless the registry sends the layer once.
func wantReadOnce(t *testing.T, hubs [2]*testHub) {
	t.Helper()
	slow := tarball.Of(tarball.File("slow", noise(91, 8<<20)))
	blob, _ := layerOf(slow)
	r := startRegistry(t, image())
	r.serveIndex(t, part{image: image(slow, lowerTar), platform: amd64},
		part{image: image(slow, upperTar), platform: arm64})
	begun := r.sendSlowly(blob)
	first := hubs[0].adding(wire.Add{Source: r.source(), Name: "a:1", Platform: "linux/amd64"})
	<-begun
	second := hubs[1].adding(wire.Add{Source: r.source(), Name: "b:1", Platform: "linux/arm64"})
	for _, done := range []<-chan error{first, second} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := r.asked[blob.String()]; n != 1 {
		t.Errorf("the layer was requested %d times, want once", n)
	}
	for _, name := range []string{"a:1", "b:1"} {
		hubs[0].fetchTree(hubs[0].settled(name)[0].Chain)
	}
}

// If two images have a layer in common that a slow registry sends, the layer is read once.
func TestSlowCommonLayerIsReadOnce(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	wantReadOnce(t, [2]*testHub{h, h})
}

// A layer that two platforms of an image have is stored once.
func TestCommonLayerOfPlatforms(t *testing.T) {
	t.Parallel()
	big := tarball.Of(tarball.File("big", noise(99, 100_000)))
	bytes := func(parts ...part) int64 {
		h := startHub(t, func(c *hub.Config) { c.Platforms = []string{"linux/amd64", "linux/arm64"} })
		r := startRegistry(t, image())
		r.serveIndex(t, parts...)
		if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
			t.Fatal(err)
		}
		n, err := h.Catalog().Starts.PackBytes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	one := bytes(part{image: image(big), platform: amd64})
	two := bytes(part{image: image(big), platform: amd64}, part{image: image(big, armTar), platform: arm64})
	if two > one+20_000 {
		t.Errorf("%d bytes of packs for two platforms, want about %d, as for one", two, one)
	}
}

// A signature from another registry is stored.
func TestSignatureIsCopied(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, fakeImage{
		layers: []fakeLayer{{blob: []byte("data"), mediaType: "application/vnd.dev.cosign.simplesigning.v1+json"}},
		config: []byte(`{"architecture":"","os":"","rootfs":{"type":"layers","diff_ids":["` + digest.FromString("data").String() +
			`"]}}`)})
	last, err := h.add(wire.Add{Source: r.source(), Name: "a:1"})
	if err != nil || last.Images[0].State != wire.StateStored {
		t.Errorf("%+v, %v, want it stored", last, err)
	}
	h.expect("/v2/a/manifests/1", http.StatusOK)
}

// An image that is added again right after its removal becomes ready: the worker does not go on
// with the removed image.
func TestAddAfterRemoval(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	add := wire.Add{Source: r.source(), Name: "a:1"}
	h.adding(add)
	awaitHeld(t, held)
	for range 10 {
		if err := h.client.Remove(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		}
		done := h.adding(add)
		select {
		case <-held:
		case <-time.After(30 * time.Second):
			t.Fatal("the worker goes on with the removed image")
		case err := <-done:
			t.Fatalf("the add ended with %v, want the copy to begin again", err)
		}
	}
	release()
	h.idle()
	h.wantReady("a:1", r.manifest)
}

// A worker that is to give an image a name waits for the name's lock. If the name is deleted or
// pushed meanwhile, the worker does not undo this.
func TestNameChangesBeforeItsImageArrives(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(h *testHub) (tag string){
		"deleted": func(h *testHub) string {
			if err := h.Names().Deleted(t.Context(), "a", "1"); err != nil {
				t.Fatal(err)
			}
			return ""
		},
		"pushed": func(h *testHub) string {
			repository := h.Registry().Repository("a")
			m, err := repository.Manifest(t.Context(), "other")
			if err == nil {
				err = repository.PutManifest(t.Context(), "1", m)
			}
			if err == nil {
				err = h.Names().Pushed(t.Context(), "a", "1")
			}
			if err != nil {
				t.Fatal(err)
			}
			return m.Digest
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.pushReady("a:other", image(upperTar))
			r := startRegistry(t, image(lowerTar))
			held, release := r.holdBlobs(t)
			h.adding(wire.Add{Source: r.source(), Name: "a:1"})
			awaitHeld(t, held)
			unlock := h.Names().Lock("a")
			release()
			time.Sleep(500 * time.Millisecond) // the worker reaches the lock
			want := change(h)
			unlock()
			h.idle()
			time.Sleep(6 * time.Second) // names that differ are compared every 5 s
			got := ""
			if m, err := h.Registry().Repository("a").Manifest(t.Context(), "1"); err == nil {
				got = m.Digest
			}
			images := h.settled("a:1")
			if got != want || (len(images) > 0) != (want != "") || want != "" && images[0].Digest != want {
				t.Errorf("the tag is %q, the images %+v, want %q for both", got, images, want)
			}
		})
	}
}

// A job of a kind that only earlier releases have is cancelled. A job of a kind that this release
// does not know stays queued, is shown as such, and can be cancelled.
func TestJobsOfOtherReleases(t *testing.T) {
	t.Parallel()
	opened := openHub(t, hubConfig(t))
	numbers := map[string]int64{}
	for _, kind := range []string{"blobs", "later"} {
		n, err := opened.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: kind, Key: "x"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		numbers[kind] = n
	}
	h := runHub(t, opened)
	list := func(ended bool) map[int64]wire.Job {
		t.Helper()
		jobs, err := h.client.Jobs(t.Context(), ended)
		if err != nil {
			t.Fatal(err)
		}
		all := map[int64]wire.Job{}
		for _, j := range jobs {
			all[j.N] = j
		}
		return all
	}
	for end := time.Now().Add(time.Minute); list(true)[numbers["blobs"]].N == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("open jobs %+v, want none of a kind that was given up", list(false))
		}
	}
	if j := list(true)[numbers["blobs"]]; j.State != wire.JobCancelled || j.Error == "" {
		t.Errorf("job %+v, want it cancelled, with the reason", j)
	}
	if j := list(false)[numbers["later"]]; j.State != wire.JobQueued || !j.Foreign {
		t.Errorf("job %+v, want it queued, of a kind that the hub does not know", j)
	}
	if j, err := h.client.CancelJob(t.Context(), numbers["later"]); err != nil || j.State != wire.JobCancelled {
		t.Errorf("cancel a job of an unknown kind: %+v, %v, want it cancelled", j, err)
	}
	h.pushReady("a:1", image(lowerTar))
	h.idle()
	for _, j := range list(true) {
		if j.Foreign != (j.N == numbers["blobs"] || j.N == numbers["later"]) {
			t.Errorf("job %+v is foreign: %t, want %t", j, j.Foreign, !j.Foreign)
		}
	}
}
