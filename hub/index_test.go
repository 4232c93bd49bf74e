package hub_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/tarball"
	"lighter/wire"
)

var (
	amd64    = &v1.Platform{OS: "linux", Architecture: "amd64"}
	arm64    = &v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}
	noneSuch = &v1.Platform{OS: "unknown", Architecture: "unknown"}
)

// part is an entry of an index.
type part struct {
	image    fakeImage
	platform *v1.Platform
	about    int  // 1: an attestation about the first part, 2: the second; 0: no attestation
	absent   bool // the index names a manifest that is not pushed
}

// pushIndex pushes parts, and an index of them as REPOSITORY:TAG or REPOSITORY. It returns the
// digests of the parts, then that of the index.
func (h *testHub) pushIndex(name string, parts ...part) []digest.Digest {
	h.t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	var digests []digest.Digest
	for i, p := range parts {
		if p.platform != nil && p.platform != noneSuch {
			p.image.platform = *p.platform
		}
		manifest, _, _ := p.image.build()
		d := v1.Descriptor{MediaType: manifest.MediaType, Platform: p.platform}
		if p.absent {
			d.Digest, d.Size = digest.FromString("absent"), int64(i+10)
		} else {
			d.Digest = h.push(repository, p.image)
			d.Size = 500
		}
		if p.about > 0 {
			d.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest",
				"vnd.docker.reference.digest": digests[p.about-1].String()}
		}
		digests = append(digests, d.Digest)
		index.Manifests = append(index.Manifests, d)
	}
	return append(digests, h.pushManifest(repository, tag, index.MediaType, index))
}

// attestation returns a manifest as BuildKit adds it to an image, with the media types of an image.
func attestation() fakeImage {
	return fakeImage{layers: []fakeLayer{{tar: []byte(`{"_type":"https://in-toto.io/Statement/v0.1"}`),
		blob: []byte(`{"_type":"https://in-toto.io/Statement/v0.1"}`), mediaType: "application/vnd.in-toto+json"}},
		platform: v1.Platform{OS: "unknown", Architecture: "unknown"}}
}

// states returns PLATFORM=STATE of images, sorted.
func states(images []wire.Image) string {
	var list []string
	for _, i := range images {
		list = append(list, i.Platform+"="+i.State)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestImagesOfAnIndex(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	other := tarball.Of(tarball.File("arm", noise(5, 5000)))
	digests := h.pushIndex("multi:1",
		part{image: image(lowerTar), platform: amd64},
		part{image: image(other), platform: arm64},
		part{image: attestation(), platform: noneSuch, about: 1},
		part{image: image(upperTar), platform: &v1.Platform{OS: "windows", Architecture: "amd64"}, absent: true})
	images := h.settled("multi:1")
	if got := states(images); got != "=stored linux/amd64=ready linux/arm64/v8=stored" {
		t.Errorf("states: %s (%+v), want amd64 ready, and arm64 and the attestation stored", got, images)
	}
	// Everything is served as it was pushed.
	for _, d := range append(digests[:3:3], digests[4]) {
		status, body, _ := h.do("GET", "/v2/multi/manifests/"+d.String(), nil, "Accept",
			v1.MediaTypeImageIndex+", "+v1.MediaTypeImageManifest)
		if status != 200 || digest.FromBytes(body) != d {
			t.Errorf("manifest %s: %d with digest %s, want it as it was pushed", d, status, digest.FromBytes(body))
		}
	}
	// The other platform is ingested on request.
	last, err := h.add(wire.Add{Name: "multi:1", Platform: "linux/arm64"})
	if err != nil || !strings.Contains(states(last.Images), "linux/arm64/v8=ready") {
		t.Errorf("the other platform: %s, %v, want it ready", states(last.Images), err)
	}
	if _, err := h.add(wire.Add{Name: "multi:1", Platform: "linux/riscv64"}); err == nil ||
		!strings.Contains(err.Error(), "linux/arm64/v8") {
		t.Errorf("a missing platform: %v, want an error", err)
	}
	if err := h.client.Remove(t.Context(), "multi:1"); err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	for _, d := range append(digests[:3:3], digests[4]) {
		if status, _, _ := h.do("GET", "/v2/multi/manifests/"+d.String(), nil); status != 404 {
			t.Errorf("manifest %s after its removal and a collection: %d, want 404", d, status)
		}
	}
}

func TestNestedIndexAndMissingPlatforms(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	inner := h.pushIndex("nested", part{image: image(lowerTar), platform: amd64})
	outer := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{
		{MediaType: v1.MediaTypeImageIndex, Digest: inner[1], Size: 500},
		{MediaType: v1.MediaTypeImageManifest, Digest: h.push("nested",
			fakeImage{layers: image(upperTar).layers, platform: *arm64}), Size: 500},
	}}
	outer.SchemaVersion = 2
	h.pushManifest("nested", "1", outer.MediaType, outer)
	if got := states(h.settled("nested:1")); got != "linux/amd64=ready linux/arm64/v8=stored" {
		t.Errorf("states: %s, want linux/amd64 ready and linux/arm64/v8 stored", got)
	}
}

func TestArtifactsAreStored(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	diffID := "sha256:" + strings.Repeat("1", 64)
	signature := fakeImage{
		config: []byte(`{"architecture":"","os":"","config":{},` +
			`"rootfs":{"type":"layers","diff_ids":["` + diffID + `"]}}`),
		layers: []fakeLayer{{blob: []byte("{}"), mediaType: "application/vnd.dev.cosign.simplesigning.v1+json"}},
	}
	for name, i := range map[string]fakeImage{
		"signed:sha256-" + strings.Repeat("a", 64) + ".sig": signature,
		"artifact:1": {layers: []fakeLayer{{blob: []byte("data"), mediaType: "text/plain"}},
			change: func(m *v1.Manifest) {
				m.ArtifactType = "application/vnd.example"
			}},
		"helm:1": {layers: []fakeLayer{{tar: lowerTar}}, change: func(m *v1.Manifest) {
			m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json"
		}},
		"foreign:1": {layers: []fakeLayer{{tar: lowerTar}}, platform: v1.Platform{OS: "linux", Architecture: "s390x"}},
	} {
		d := h.push(name, i)
		images := h.settled(name)
		if len(images) != 1 || images[0].State != wire.StateStored || images[0].Error != "" {
			t.Errorf("%s: %+v, want one image, stored", name, images)
		}
		repository, tag, _ := strings.Cut(name, ":")
		if status, body, _ := h.do("GET", "/v2/"+repository+"/manifests/"+tag, nil, "Accept",
			v1.MediaTypeImageManifest); status != 200 || digest.FromBytes(body) != d {
			t.Errorf("manifest of %s: %d %s, want it as it was pushed", name, status, body)
		}
	}
	if inventory := h.holdings().inventory; inventory.Layers != 0 || inventory.Chains != 0 {
		t.Errorf("the hub has %+v, want neither layers nor chains", inventory)
	}
	// A manifest pushed by digest is no image before an index names it.
	h.push("parts", image(lowerTar))
	if images := h.settled("parts"); len(images) != 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// A client pushes an index that has a manifest in common with another image, and that image is
// removed in between. The client has found the manifest, so the index is complete.
func TestIndexBesideARemoval(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	arm := fakeImage{layers: image(armTar).layers, platform: *arm64}
	both := h.pushIndex("a:1", part{image: image(lowerTar), platform: amd64}, part{image: arm, platform: arm64})
	h.ready("a:1")
	h.idle()
	if status, _, _ := h.do("HEAD", "/v2/a/manifests/"+both[1].String(), nil, "Accept",
		v1.MediaTypeImageManifest); status != http.StatusOK {
		t.Fatalf("the client looks for the manifest that its index has in common: %d, want 200", status)
	}
	newer := h.push("a", image(upperTar))
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{
		{MediaType: v1.MediaTypeImageManifest, Digest: newer, Size: 500, Platform: amd64},
		{MediaType: v1.MediaTypeImageManifest, Digest: both[1], Size: 500, Platform: arm64}}}
	index.SchemaVersion = 2
	h.pushManifest("a", "2", index.MediaType, index)
	if got := states(h.settled("a:2")); got != "linux/amd64=ready linux/arm64/v8=stored" {
		t.Errorf("states: %s, want linux/amd64 ready and linux/arm64/v8 stored", got)
	}
	h.expect("/v2/a/manifests/"+both[1].String(), http.StatusOK)
}
