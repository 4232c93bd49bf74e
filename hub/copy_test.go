package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/tarball"
	"lighter/wire"

	"lighter/hub"
)

var armTar = tarball.Of(tarball.File("arm", noise(5, 5000)))

// If the platforms of an image are added one by one, all of them are kept.
func TestPlatformsAccumulate(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image())
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64}, part{image: image(armTar), platform: arm64})
	for _, add := range []struct{ platform, want string }{
		{"", "linux/amd64=ready"}, {"linux/arm64", "linux/arm64/v8=ready"}, {"linux/amd64",
			"linux/amd64=ready"}, {"linux/arm64/v8", "linux/arm64/v8=ready"}} {
		last, err := h.add(wire.Add{Source: r.source(), Name: "a:1", Platform: add.platform})
		if err != nil || states(last.Images) != add.want {
			t.Errorf("platform %q: %s, %v, want %s", add.platform, states(last.Images), err, add.want)
		}
	}
	images := h.settled("a:1")
	if got := states(images); got != "linux/amd64=ready linux/arm64/v8=ready" {
		t.Errorf("the name refers to %s, want both platforms ready", got)
	}
	for _, i := range images {
		h.fetchTree(i.Chain)
	}
	// If the image of one platform is invalid, those of other platforms can be added.
	r.serveIndex(t, part{image: image(tarball.Of(tarball.Link("a", "b"))), platform: amd64},
		part{image: image(armTar), platform: arm64})
	if _, err := h.add(wire.Add{Source: r.source(), Name: "b:1"}); err == nil {
		t.Error("an invalid image was added")
	}
	if last, err := h.add(wire.Add{Source: r.source(), Name: "b:1", Platform: "linux/arm64"}); err != nil ||
		states(last.Images) != "linux/arm64/v8=ready" {
		t.Errorf("a platform beside an invalid one: %s, %v, want it ready", states(last.Images), err)
	}
}

func TestMissingPlatform(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, fakeImage{layers: image(armTar).layers, platform: *arm64})
	for _, add := range []wire.Add{{Source: r.source(), Name: "a:1"}, {Name: "pushed:1"}} {
		h.push("pushed:1", fakeImage{layers: image(armTar).layers, platform: *arm64})
		if _, err := h.add(add); err == nil || !strings.Contains(err.Error(),
			"no image for linux/amd64; there is one for linux/arm64/v8") {
			t.Errorf("%+v: %v, want an error that names the platforms", add, err)
		}
	}
	if images := h.settled("a:1"); len(images) > 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// If a name gets an index with the image that it refers to, the image is ready without ingestion,
// and the registry has the index.
func TestNameMovesToAnIndexWithTheSameImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image())
	add := wire.Add{Source: r.source(), Name: "a:1"}
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64})
	if _, err := h.add(add); err != nil {
		t.Fatal(err)
	}
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64}, part{image: image(armTar), platform: arm64})
	if last, err := h.add(add); err != nil || states(last.Images) != "linux/amd64=ready" {
		t.Errorf("the index: %s, %v, want linux/amd64=ready", states(last.Images), err)
	}
	if _, body, _ := h.do("GET", "/v2/a/manifests/1", nil, "Accept",
		v1.MediaTypeImageIndex); string(body) != string(r.manifest) {
		t.Errorf("the registry serves %s, want the new root", body)
	}
}

func TestIndexThatNamesAManifestTwice(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.Platforms = []string{"linux/arm64"} })
	r := startRegistry(t, image())
	same := fakeImage{layers: image(armTar).layers, platform: v1.Platform{OS: "linux", Architecture: "arm64"}}
	r.serveIndex(t, part{image: same, platform: &same.platform}, part{image: same, platform: arm64})
	for range 2 {
		if last, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil || len(last.Images) != 1 ||
			last.Images[0].State != wire.StateReady {
			t.Errorf("added %+v, %v, want one ready image", last, err)
		}
	}
}

// An index with more than 1,000 manifests, here in nested indexes, fails.
func TestIndexBombIsRefused(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	bomb := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 1}
	for i := range 3 {
		index := v1.Index{MediaType: v1.MediaTypeImageIndex}
		index.SchemaVersion = 2
		for n := range 1000 {
			d := bomb
			d.Annotations = map[string]string{"n": fmt.Sprint(n)}
			index.Manifests = append(index.Manifests, d)
		}
		tag := ""
		if i == 2 {
			tag = "1"
		}
		bomb = v1.Descriptor{MediaType: index.MediaType, Digest: h.pushManifest("bomb", tag, index.MediaType, index),
			Size: 1}
	}
	images := h.settled("bomb:1")
	if len(images) != 1 || images[0].State != wire.StateFailed ||
		!strings.Contains(images[0].Error, "more than 1000 manifests") {
		t.Errorf("images %+v, want one failed image with the reason", images)
	}
}

// Blobs whose descriptors exceed the limits are not requested.
func TestDescriptorsBeyondTheLimitsAreRefused(t *testing.T) {
	t.Parallel()
	h := startHub(t, small)
	for _, change := range []func(*v1.Manifest){
		func(m *v1.Manifest) { m.Layers[0].Size = 1 << 60 },
		func(m *v1.Manifest) { m.Layers[0].Size, m.ArtifactType = 1<<60, "application/vnd.example" },
		func(m *v1.Manifest) { m.Layers[0].Size, m.ArtifactType = -1, "application/vnd.example" },
		func(m *v1.Manifest) { m.Config.Size = 1 << 60 },
	} {
		r := startRegistry(t, fakeImage{layers: image(lowerTar).layers, change: change})
		if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err == nil ||
			!strings.Contains(err.Error(), "limit") && !strings.Contains(err.Error(), "size") {
			t.Errorf("added an image beyond the limits: %v, want an error", err)
		}
		if n := r.asked[digest.FromBytes(gzipped(lowerTar)).String()]; n > 0 {
			t.Errorf("the blob was requested %d times, want none", n)
		}
	}
	if images := h.settled(""); len(images) > 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// endless makes the registry never complete the transfer of one blob. The blob with digest delayed
// is sent after that transfer has begun. begun and ended are closed when the endless transfer
// begins and is cancelled.
func (r *fakeRegistry) endless(blob, delayed digest.Digest) (begun, ended chan struct{}) {
	begun, ended = make(chan struct{}), make(chan struct{})
	r.spoil = func(w http.ResponseWriter, req *http.Request, d digest.Digest, b []byte) bool {
		switch d {
		case blob:
			_, _ = w.Write(b[:1000])
			_ = http.NewResponseController(w).Flush()
			close(begun)
			<-req.Context().Done()
			close(ended)
			return true
		case delayed:
			<-begun
		}
		return false
	}
	return begun, ended
}

// A copy from another registry is cancelled when its image fails or is removed.
func TestCopyEndsWithItsImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	held := digest.FromBytes(gzipped(upperTar))
	bad := []byte("\x1f\x8bwhich is no gzip")
	r := startRegistry(t, fakeImage{layers: []fakeLayer{{tar: lowerTar, blob: bad}, {tar: upperTar}}})
	_, ended := r.endless(held, digest.FromBytes(bad))
	if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err == nil ||
		!strings.Contains(err.Error(), "layer 1 of 2") {
		t.Errorf("added an image with a bad layer: %v, want an error about layer 1 of 2", err)
	}
	<-ended

	r = startRegistry(t, image(lowerTar, upperTar))
	begun, ended := r.endless(held, "")
	added := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "b:1"})
		added <- err
	}()
	<-begun
	h.known("b:1")
	if err := h.client.Remove(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := <-added; err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("the client of a removed image: %v, want an error that says so", err)
	}
	if images := h.settled("b:1"); len(images) > 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// A slow source does not delay pushes.
func TestPushesDoNotWaitForASource(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	held, release := r.holdBlobs(t)
	added := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "slow:1"})
		added <- err
	}()
	awaitHeld(t, held)
	for n := range 3 {
		name := fmt.Sprintf("pushed:%d", n)
		h.pushReady(name, image(tarball.Of(tarball.File(name, noise(uint64(n), 5000)))))
	}
	release()
	if err := <-added; err != nil {
		t.Error(err)
	}
	h.fetchTree(h.ready("slow:1").Chain)
}

// If an image is deleted in its registry while the hub copies it, the copy fails, and nothing of it
// stays.
func TestSourceIsDeletedWhileItIsCopied(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("other:1", image(lowerTar)) // shares nothing that is copied
	before := h.holdings()
	r := startRegistry(t, image(upperTar, tarball.Of(tarball.File("large", noise(1, 50_000)))))
	held, goOn := make(chan struct{}, 100), make(chan struct{})
	r.spoil = func(w http.ResponseWriter, _ *http.Request, _ digest.Digest, b []byte) bool {
		if len(b) < 10_000 {
			return false
		}
		_, _ = w.Write(b[:len(b)/2])
		_ = http.NewResponseController(w).Flush()
		held <- struct{}{}
		<-goOn
		panic(http.ErrAbortHandler)
	}
	added := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "copied:1"})
		added <- err
	}()
	awaitHeld(t, held)
	r.remove()
	r.mu.Lock()
	r.blobs = nil
	r.mu.Unlock()
	close(goOn)
	if err := <-added; err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the copy: %v, want an error that says 404", err)
	}
	for _, i := range h.settled("copied:1") {
		if i.State == wire.StateReady {
			t.Errorf("image %+v, want that it has failed", i)
		}
	}
	if status, _, _ := h.do("GET", "/v2/copied/manifests/1", nil); status != 404 {
		t.Errorf("the manifest of the image: %d, want 404", status)
	}
	h.unchanged("a copy whose source was deleted", before)
	h.fetchTree(h.ready("other:1").Chain)
}

// If a name is added, and added or pushed with another image meanwhile, the name refers to the
// later image.
func TestLaterAddWins(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"added", "pushed"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			r := startRegistry(t, image(lowerTar, upperTar))
			held, release := r.holdBlobs(t)
			first := make(chan error, 1)
			go func() {
				_, err := h.add(wire.Add{Source: r.source(), Name: "a:1"})
				first <- err
			}()
			awaitHeld(t, held)
			h.known("a:1")
			now := startRegistry(t, image(armTar))
			if last == "pushed" {
				h.push("a:1", image(armTar))
			} else if _, err := h.add(wire.Add{Source: now.source(), Name: "a:1"}); err != nil {
				t.Fatal(err)
			}
			release()
			if err := <-first; err == nil {
				t.Error("the first add succeeded, want an error")
			}
			images := h.settled("a:1")
			if len(images) != 1 || images[0].State != wire.StateReady ||
				images[0].Digest != digest.FromBytes(now.manifest).String() {
				t.Errorf("the name refers to %+v, want the later image, ready", images)
			}
			if _, body, _ := h.do("GET", "/v2/a/manifests/1", nil, "Accept",
				v1.MediaTypeImageManifest); string(body) != string(now.manifest) {
				t.Errorf("the registry serves %s, want the new root", body)
			}
		})
	}
}

// An image that was pushed by digest can be added under a name.
func TestAddByDigest(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	digests := h.pushIndex("a", part{image: image(lowerTar), platform: amd64},
		part{image: image(armTar), platform: arm64})
	last, err := h.add(wire.Add{Name: "a:1", Digest: digests[2].String(), Platform: "linux/arm64"})
	if err != nil || states(last.Images) != "linux/arm64/v8=ready" {
		t.Errorf("added by digest: %s, %v, want linux/arm64/v8=ready", states(last.Images), err)
	}
	if got := states(h.settled("a:1")); got != "linux/amd64=stored linux/arm64/v8=ready" {
		t.Errorf("the name refers to %s, want linux/amd64 stored and linux/arm64/v8 ready", got)
	}
	h.expect("/v2/a/manifests/1", http.StatusOK)
	for _, bad := range []wire.Add{{Name: "a:1", Digest: "1"}, {Name: "a:1",
		Digest: digest.FromString("absent").String()}, {Name: "a@" +
		digests[0].String(), Digest: digests[1].String()}} {
		if _, err := h.add(bad); err == nil {
			t.Errorf("%+v was added, want an error", bad)
		}
	}
}

// After concurrent pushes, adds and removals, the catalog and the registry agree about each name.
func TestRegistryAndCatalogAgree(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	images := []fakeImage{image(armTar), image(tarball.Of(tarball.File("other", "x")))}
	manifests := make([][]byte, len(images))
	for i, image := range images {
		h.push("a", image)
		manifest, _, _ := image.build()
		manifests[i], _ = json.Marshal(manifest)
	}
	var all sync.WaitGroup
	for i, manifest := range manifests {
		for _, tag := range []string{"1", "2"} {
			all.Go(func() {
				for range 20 {
					status, body, _ := h.do("PUT", "/v2/a/manifests/"+tag, manifest, "Content-Type",
						v1.MediaTypeImageManifest)
					if status != http.StatusCreated {
						t.Errorf("push manifest %d to tag %s: %d %s, want 201", i, tag, status, body)
					}
				}
			})
		}
	}
	all.Go(func() {
		for range 20 {
			_ = h.client.Remove(t.Context(), "a:1") // it may not be there
		}
	})
	all.Wait()
	for _, tag := range []string{"1", "2"} {
		named := h.settled("a:" + tag)
		status, body, _ := h.do("GET", "/v2/a/manifests/"+tag, nil, "Accept", v1.MediaTypeImageManifest)
		switch {
		case status == http.StatusOK && (len(named) != 1 || named[0].Digest != digest.FromBytes(body).String()):
			t.Errorf("tag %s is %s in the registry, but %+v in the catalog", tag, digest.FromBytes(body), named)
		case status != http.StatusOK && len(named) > 0:
			t.Errorf("tag %s: %d in the registry, %+v in the catalog, want none", tag, status, named)
		}
	}
}

// A registry that has had enough requests rests. The job of an image waits for the end of the rest,
// and then goes on.
func TestRegistryRests(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	var refused atomic.Int64
	lower, _ := layerOf(lowerTar)
	r.spoil = func(w http.ResponseWriter, _ *http.Request, d digest.Digest, _ []byte) bool {
		if d != lower || refused.Add(1) > 1 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	if refused.Load() < 2 {
		t.Error("the registry did not answer 429, want it to")
	}
}
