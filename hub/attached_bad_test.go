package hub_test

import (
	"crypto/ed25519"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// The job of an image says what is wrong. It reads no layer if the hub must not push.
func TestIndexThatCannotBeAttached(t *testing.T) {
	t.Parallel()
	big := tarball.Of(tarball.File("big", noise(5, 9<<20)))
	z, _ := zstd.NewWriter(nil)
	single := fakeImage{layers: []fakeLayer{{tar: big, blob: z.EncodeAll(big, nil),
		mediaType: v1.MediaTypeImageLayerZstd}}}
	refuse := func(method, part string, status int) guard {
		return func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method != method || !strings.Contains(req.URL.Path, part) {
				return false
			}
			w.WriteHeader(status)
			return true
		}
	}
	large := image(tarball.Of(tarball.File("large", noise(6, 1<<20)))) // more than is read ahead
	built, _, _ := large.build()
	layer := built.Layers[len(built.Layers)-1]
	damaged := append([]byte{0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 3}, noise(7, int(layer.Size)-10)...)
	damage := func(w http.ResponseWriter, req *http.Request) bool {
		isLayer := req.Method == "GET" && strings.HasSuffix(req.URL.Path, layer.Digest.String())
		if isLayer {
			_, _ = w.Write(damaged)
		}
		return isLayer
	}
	for name, c := range map[string]struct {
		image  fakeImage
		guard  guard
		state  func(catalog.Job) bool
		want   string
		passes bool // the job ends without the guard
	}{
		"refused": {image(upperTar), refuse("POST", "/blobs/uploads", 403), isToldWhy,
			"attach needs the right to push to this repository", true},
		"full": {image(upperTar), refuse("PUT", "/manifests/", 507), isToldWhy, "507", true},
		"away": {image(upperTar), refuse("POST", "/blobs/uploads", 503), isToldWhy, "503", true},
		"gone": {image(upperTar), refuse("GET", "/manifests/sha256:", 404), isFailed, "the registry does not have it",
			false},
		"damaged":   {large, damage, isToldWhy, "read the source registry", true},
		"one frame": {single, nil, isFailed, "layer 1 of 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t)
			c0 := hubConfig(t)
			attachesTo(u)(&c0)
			h := openHub(t, c0)
			h.Attacher().LookEvery, h.Attacher().Pause = time.Hour, 100*time.Millisecond
			waiting := runHub(t, h)
			id := u.client(waiting).push("physics/a:1", c.image)
			got := waiting.added(wire.Add{Source: "docker://" + u.host() + "/physics/a:1"})
			waiting.stop()
			u.guardBy(c.guard)
			before := len(u.requests("GET /v2/physics/a/blobs/"))
			again := runAttaching(t, c0)
			j := again.attachJob(u, "physics/a", id, c.state)
			if !strings.Contains(j.Error, c.want) {
				t.Errorf("the job says %q, want %q", j.Error, c.want)
			}
			if more := u.requests("GET /v2/physics/a/blobs/"); name == "refused" && len(more) > before {
				t.Errorf("blobs are read that do not help: %q", more[before:])
			}
			u.guardBy(nil)
			if !c.passes {
				time.Sleep(300 * time.Millisecond) // some looks
				if last := again.attachJob(u, "physics/a", id, isFailed); last.N != j.N {
					t.Errorf("job %d follows the failed one", last.N)
				}
				return
			}
			again.attachJob(u, "physics/a", id, isDone)
			if _, found := again.found(u, "physics/a", got); len(found) != 1 {
				t.Errorf("a node finds %d indexes, want 1", len(found))
			}
		})
	}
}

// A hub that ends while it attaches an index does so after its restart.
func TestHubEndsWhileItAttaches(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "PUT"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t)
			h := attachingHub(t, u)
			id := u.client(h).push("physics/a:1", image(lowerTar))
			manifest, _, _ := image(lowerTar).build()
			at, begun := "/blobs/"+manifest.Layers[0].Digest.String(), make(chan struct{}, 10)
			if method == "PUT" {
				at = "/manifests/sha256"
			}
			reads := 0
			u.guardBy(func(_ http.ResponseWriter, req *http.Request) bool {
				if req.Method != method || !strings.Contains(req.URL.Path, at) {
					return false
				}
				if reads++; method == "GET" && reads == 1 { // the ingestion
					return false
				}
				_, _ = io.Copy(io.Discard, req.Body) // otherwise the server does not see that the client leaves
				begun <- struct{}{}
				<-req.Context().Done()
				return true
			})
			got := h.added(wire.Add{Source: "docker://" + u.host() + "/physics/a:1"})
			<-begun
			h.stop()
			u.guardBy(nil)
			again := runAttaching(t, h.config)
			again.attachJob(u, "physics/a", id, isDone)
			in, found := again.found(u, "physics/a", got)
			if len(found) != 1 {
				t.Fatalf("a node finds %d indexes, want 1", len(found))
			}
			wantReadable(t, in, found[0].Contents, manifest.Layers)
			for _, file := range files(t, h.config.Root) {
				if strings.Contains(file, "attach-") {
					t.Errorf("a temporary file is left: %s", file)
				}
			}
		})
	}
}

// What others have attached stays, and is not taken for the hub's, whose index gets a higher
// version. That holds also if the list names an artifact that the registry does not have, or that
// is no manifest.
func TestIndexOfOthersStays(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w http.ResponseWriter){
		"an index": nil,
		"lost":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"no manifest": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.other+json")
			_, _ = w.Write([]byte("{}"))
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); indexOfOthersStays(t, spoil) })
	}
}

// indexOfOthersStays attaches an index beside another one. spoil, if it is not nil, answers
// requests for that.
func indexOfOthersStays(t *testing.T, spoil func(w http.ResponseWriter)) {
	u := startUpstream(t)
	h := attachingHub(t, u)
	client := u.client(h)
	id := client.push("physics/a:1", image(upperTar))
	client.pushBlob("physics/a", v1.DescriptorEmptyJSON.Data)
	blob := v1.Descriptor{Digest: id, Size: 1} // is not read
	contents := attached.Contents{Manifest: id, Chain: digest.FromBytes(upperTar).String(), Tree: chunk.Sum(nil),
		Format: index.Format, Version: 6, Index: blob, Locations: blob, Tables: []v1.Descriptor{blob}}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	envelope, err := attached.Seal(&contents, []ed25519.PrivateKey{key})
	if err != nil {
		t.Fatal(err)
	}
	client.pushBlob("physics/a", envelope)
	subject := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: id, Size: 1}
	other := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: attached.ArtifactType,
		Config: v1.DescriptorEmptyJSON, Subject: &subject, Layers: []v1.Descriptor{{Digest: digest.FromBytes(envelope),
			MediaType: attached.MediaTypeEnvelope, Size: int64(len(envelope))}}}
	other.SchemaVersion = 2
	b, _ := json.Marshal(other) // plain data
	theirs := client.pushManifest("physics/a", digest.FromBytes(b).String(), other.MediaType, other)
	list := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{{MediaType: other.MediaType,
		ArtifactType: attached.ArtifactType, Digest: theirs, Size: int64(len(b))}}}
	list.SchemaVersion = 2
	tag := strings.Replace(id.String(), ":", "-", 1)
	client.pushManifest("physics/a", tag, list.MediaType, list)
	u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
		if spoil == nil || req.Method != "GET" || !strings.HasSuffix(req.URL.Path, theirs.String()) {
			return false
		}
		spoil(w)
		return true
	})
	got := h.added(wire.Add{Source: "docker://" + u.host() + "/physics/a:1"})
	h.attachJob(u, "physics/a", id, isDone)
	want := 7
	if spoil != nil {
		want = 1
	}
	u.guardBy(nil)
	if _, found := h.found(u, "physics/a", got); len(found) != 1 || found[0].Contents.Version != want {
		t.Errorf("a node finds %+v, want version %d", found, want)
	}
	status, b, _ := client.do("GET", "/v2/physics/a/manifests/"+tag, nil, "Accept", v1.MediaTypeImageIndex)
	var now v1.Index
	if err := json.Unmarshal(b, &now); err != nil || status != 200 || len(now.Manifests) != 2 ||
		!slices.ContainsFunc(now.Manifests, func(d v1.Descriptor) bool { return d.Digest == theirs }) {
		t.Errorf("what refers to the image: %d, %s, want two, and %s among them", status, b, theirs)
	}
}
