package hub_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"lighter/hub"
	"lighter/hub/registries"
	"lighter/wire"
)

// upstream is another registry, a real one, that clients push to.
type upstream struct {
	app    http.Handler
	server *httptest.Server

	mu    sync.Mutex // guards the following
	asked []string   // METHOD PATH AUTHORIZATION
	guard guard
}

// A guard may answer a request instead of the registry. It reports whether it has.
type guard func(w http.ResponseWriter, req *http.Request) bool

// pushHost is the name of the hub for pushes to the registry.
const pushHost = "push.example.org"

func startUpstream(t *testing.T) *upstream {
	c := &configuration.Configuration{Storage: configuration.Storage{
		"filesystem": {"rootdirectory": t.TempDir()}, "delete": {"enabled": true},
		"maintenance": {"uploadpurging": map[any]any{"enabled": false}}}}
	c.HTTP.Secret = "secret"
	logrus.SetOutput(io.Discard)
	u := &upstream{app: handlers.NewApp(t.Context(), c)}
	u.server = httptest.NewServer(u)
	t.Cleanup(u.server.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	u.mu.Lock()
	u.asked = append(u.asked, req.Method+" "+req.URL.Path+" "+req.Header.Get("Authorization"))
	guard := u.guard
	u.mu.Unlock()
	if guard == nil || !guard(w, req) {
		u.app.ServeHTTP(w, req)
	}
}

// guardBy sets the guard of later requests; nil removes it.
func (u *upstream) guardBy(g guard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.guard = g
}

// requests returns the requests whose text has a part.
func (u *upstream) requests(part string) (some []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(u.asked), func(s string) bool { return !strings.Contains(s, part) })
}

// host returns HOST:PORT of the registry.
func (u *upstream) host() string { return strings.TrimPrefix(u.server.URL, "http://") }

// pushesTo makes a hub pass pushes on to a registry.
func pushesTo(u *upstream) func(*hub.Config) {
	return func(c *hub.Config) {
		c.Registries = append(c.Registries, registries.Registry{Reached: reached(u.host()),
			PushNames: []string{pushHost}})
	}
}

// pusher returns a client that pushes through the hub. Layers of any size are split.
func (h *testHub) pusher() *testHub {
	h.Pushes().MinBytes = 1000
	p := *h
	p.host = pushHost
	return &p
}

// as returns a client with a login.
func (h *testHub) as(user, password string) *testHub {
	p := *h
	p.url = strings.Replace(h.url, "http://", "http://"+url.UserPassword(user, password).String()+"@", 1)
	return &p
}

// wantNothing fails the test if the hub has an image, or has published anything.
func (h *testHub) wantNothing() {
	h.t.Helper()
	images, err := h.client.Images(h.t.Context(), "")
	if err != nil || len(images) > 0 {
		h.t.Errorf("images: %+v, %v, want none", images, err)
	}
	for _, tar := range [][]byte{lowerTar, upperTar} {
		if h.hasLayer(gzipped(tar), tar) {
			h.t.Error("a layer is published")
		}
	}
	if left := h.holdings().objects; len(left) > 0 {
		h.t.Errorf("the bucket has %q, want nothing", left)
	}
}

// An image that is pushed through the hub is in its registry, and becomes ready in the hub. Its
// layers are not read again. They are published only when the registry has accepted the manifest.
func TestPushThrough(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	h := startHub(t, pushesTo(u))
	client := h.pusher()
	manifest, config, blobs := image(lowerTar, upperTar).build()
	for _, b := range append(blobs, config) {
		client.pushBlob("some/image", b)
	}
	h.wantNothing()
	name := u.host() + "/some/image:1"
	d := client.pushManifest("some/image", "1", manifest.MediaType, manifest)
	if images, err := h.client.Images(t.Context(), name); err != nil || len(images) != 1 {
		t.Errorf("images after the push: %+v, %v, want one", images, err)
	}
	got := h.ingested(name)
	if got.State != wire.StateReady || got.Digest != d.String() {
		t.Fatalf("the image is %+v, want %s, ready", got, d)
	}
	h.fetchTree(got.Chain)
	for _, l := range manifest.Layers {
		if again := u.requests("GET /v2/some/image/blobs/" + l.Digest.String()); len(again) > 0 {
			t.Errorf("the hub has read a layer again: %q", again)
		}
	}
	if status, _, _ := client.do("GET", "/v2/some/image/manifests/1?ns="+u.host(), nil, "Accept",
		manifest.MediaType); status != 200 {
		t.Errorf("the manifest through the hub: %d, want 200", status)
	}
	// The push of the same image under another tag pushes no blob.
	client.pushManifest("some/image", "2", manifest.MediaType, manifest)
	if got := h.ingested(u.host() + "/some/image:2"); got.State != wire.StateReady || got.Digest != d.String() {
		t.Errorf("the image's second name is %+v, want %s, ready", got, d)
	}
	h.awaitMetric(`lighter_hub_push_through_images_total{result="queued"} 2`)
}

// What clients need of a registry works through the hub: uploads in parts, at another process of
// the hub, too; mounts; other digests than SHA-256; artifacts; ranges; lists; deletions.
func TestPushThroughPassesAll(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	first, second := startHub(t, pushesTo(u)).pusher(), startHub(t, pushesTo(u)).pusher()
	layer := gzipped(lowerTar)
	id := digest.FromBytes(layer)
	status, _, header := first.do("POST", "/v2/a/blobs/uploads/", nil)
	if status != 202 || strings.Contains(header.Get("Location"), "//") || header.Get("Docker-Upload-Uuid") == "" {
		t.Fatalf("begin an upload: %d, %v, want 202, and a location at the hub", status, header)
	}
	upload := first.patch(first.uploadOf(header), 0, layer[:3000])
	upload = second.patch(upload, 3000, layer[3000:])
	if status, b, _ := first.do("PUT", upload+"&digest="+id.String(), nil); status != 201 {
		t.Fatalf("end an upload: %d %s, want 201", status, b)
	}
	expect := func(want int, method, path string, body []byte, header ...string) (b []byte, got http.Header) {
		t.Helper()
		status, b, got := first.do(method, path, body, header...)
		if status != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, status, b, want)
		}
		return b, got
	}
	expect(201, "POST", "/v2/b/blobs/uploads/?mount="+id.String()+"&from=a", nil)
	b, _ := expect(206, "GET", "/v2/b/blobs/"+id.String(), nil, "Range", "bytes=5-9")
	if !bytes.Equal(b, layer[5:10]) {
		t.Errorf("a range: %d bytes, want 5 bytes of the layer", len(b))
	}
	_, header = expect(202, "POST", "/v2/b/blobs/uploads/", nil)
	long := digest.SHA512.FromBytes(layer)
	_, header = expect(201, "PUT", first.uploadOf(header)+"&digest="+long.String(), layer)
	if !strings.HasPrefix(header.Get("Location"), "/v2/b/blobs/") {
		t.Errorf("location %q, want one at the hub", header.Get("Location"))
	}
	pushed := first.push("b:1", image(lowerTar))
	artifact := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: "test/sbom",
		Config: v1.DescriptorEmptyJSON, Layers: []v1.Descriptor{}}
	artifact.SchemaVersion = 2
	artifact.Subject = &v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: pushed, Size: 1}
	first.pushBlob("b", v1.DescriptorEmptyJSON.Data)
	first.pushManifest("b", "sbom", artifact.MediaType, artifact)
	first.awaitMetricOf(`lighter_hub_push_through_images_total{result="other"} 1`)
	_, header = expect(200, "GET", "/v2/b/tags/list?n=1", nil)
	if next := header.Get("Link"); !strings.HasPrefix(next, "</v2/b/tags/list") {
		t.Errorf("link %q, want the next page at the hub", next)
	}
	expect(202, "DELETE", "/v2/b/manifests/1", nil)
	expect(404, "GET", "/v2/b/manifests/1", nil)
	if b, _ = expect(404, "GET", "/v2/b/manifests/none", nil); !strings.Contains(string(b), "MANIFEST_UNKNOWN") {
		t.Errorf("the registry's error was changed to %s", b)
	}
}

// awaitMetricOf is awaitMetric for a client that pushes.
func (h *testHub) awaitMetricOf(line string) {
	h.t.Helper()
	hub := *h
	hub.host = ""
	hub.awaitMetric(line)
}

// A private image is pushed with the client's login, which goes to the registry as it is. Nothing
// of the image is published.
func TestPushThroughKeepsPrivateImages(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
		if _, password, _ := req.BasicAuth(); password == unlogged {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="theirs"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	h := startHub(t, pushesTo(u))
	client := h.pusher()
	if status, _, header := client.do("GET", "/v2/", nil); status != 401 ||
		!strings.HasPrefix(header.Get("WWW-Authenticate"), `Basic realm="theirs"`) {
		t.Errorf("without a login: %d, %v, want the registry's challenge", status, header)
	}
	client = client.as("user", unlogged)
	client.push("some/image:1", image(lowerTar, upperTar))
	h.awaitMetric(`lighter_hub_push_through_images_total{result="private"} 1`)
	h.wantNothing()
	login := basic("user", unlogged)
	for _, request := range u.requests("PUT") {
		if !strings.HasSuffix(request, login) {
			t.Errorf("request %s, want the client's login", request)
		}
	}
}

// Nothing of a push that the registry refuses is published, and the client gets the registry's
// answers.
func TestPushThroughToRegistriesThatRefuse(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		header string // NAME: VALUE
		status int    // of the answer to a manifest, which the registry does not store
	}{
		"it refuses the manifest": {"", http.StatusForbidden},
		"it is overloaded":        {"Retry-After: 1", http.StatusTooManyRequests},
		"it says another digest": {"Docker-Content-Digest: " + digest.FromString("other").String(),
			http.StatusCreated},
		"it does not store anything": {"", http.StatusCreated},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t)
			name, value, _ := strings.Cut(test.header, ": ")
			u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
				if req.Method != "PUT" || !strings.Contains(req.URL.Path, "/manifests/") {
					return false
				}
				w.Header().Set(name, value)
				w.WriteHeader(test.status)
				return true
			})
			h := startHub(t, pushesTo(u))
			client := h.pusher()
			manifest, config, blobs := image(lowerTar, upperTar).build()
			for _, b := range append(blobs, config) {
				client.pushBlob("some/image", b)
			}
			body, err := json.Marshal(manifest)
			if err != nil {
				t.Fatal(err)
			}
			status, _, header := client.do("PUT", "/v2/some/image/manifests/1", body, "Content-Type",
				manifest.MediaType)
			if status != test.status || header.Get(name) != value {
				t.Errorf("answer %d, %v, want %d and %s as the registry has answered", status, header, test.status,
					test.header)
			}
			h.wantNothing()
		})
	}
}

// A push that breaks off leaves nothing, and succeeds when the client tries again.
func TestPushThroughThatBreaksOff(t *testing.T) {
	t.Parallel()
	manifest, config, blobs := image(lowerTar, upperTar).build()
	layer := blobs[0]
	for what, breakOff := range map[string]func(t *testing.T, u *upstream, client *testHub){
		"the registry cuts at 99 %": func(t *testing.T, u *upstream, client *testHub) {
			u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
				if req.Method != "PUT" {
					return false
				}
				if _, err := io.CopyN(io.Discard, req.Body, int64(len(layer)*99/100)); err != nil {
					t.Error(err)
				}
				panic(http.ErrAbortHandler)
			})
			to := client.beginUpload() + "&digest=" + digest.FromBytes(layer).String()
			if status, b, _ := client.do("PUT", to, layer); status != http.StatusServiceUnavailable {
				t.Errorf("the upload: %d %s, want 503", status, b)
			}
			u.guardBy(nil)
		},
		"the registry answers before it has all": func(t *testing.T, u *upstream, client *testHub) {
			u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
				if req.Method == "PUT" {
					w.WriteHeader(http.StatusCreated)
				}
				return req.Method == "PUT"
			})
			client.do("PUT", client.beginUpload()+"&digest="+digest.FromBytes(layer).String(), layer)
			u.guardBy(nil)
		},
		"the client is gone": func(t *testing.T, u *upstream, client *testHub) {
			body := io.MultiReader(bytes.NewReader(layer[:len(layer)/2]), &failing{})
			req, err := http.NewRequestWithContext(t.Context(), "PATCH", client.url+client.beginUpload(), body)
			if err != nil {
				t.Fatal(err)
			}
			req.Host, req.ContentLength = pushHost, int64(len(layer))
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
				t.Errorf("a request that broke off was answered with %s", res.Status)
			}
		},
		"another digest": func(t *testing.T, u *upstream, client *testHub) {
			to := client.beginUpload() + "&digest=" + digest.FromString("other").String()
			if status, b, _ := client.do("PUT", to, layer); status != http.StatusBadRequest {
				t.Errorf("the upload: %d %s, want the registry's 400", status, b)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := startUpstream(t)
			h := startHub(t, pushesTo(u))
			client := h.pusher()
			breakOff(t, u, client)
			h.wantNothing()
			for _, b := range append(slices.Clone(blobs), config) {
				client.pushBlob("a", b)
			}
			client.pushManifest("a", "1", manifest.MediaType, manifest)
			name := u.host() + "/a:1"
			if got := h.ingested(name); got.State != wire.StateReady {
				t.Fatalf("the image is %+v, want it ready", got)
			}
			if problems := h.problems(name); problems != "" {
				t.Errorf("problems of the image: %s, want none", problems)
			}
		})
	}
}

// If the registry cannot be asked whether everybody may read a pushed image, the push succeeds, and
// the hub asks again. A client that then only finds the tag changes nothing.
func TestPushThroughIsQueuedLater(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	var refused atomic.Int64
	u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != "HEAD" || req.UserAgent() != "lighter" || refused.Add(1) > 1 {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	h := startHub(t, pushesTo(u))
	client := h.pusher()
	client.push("some/image:1", image(lowerTar, upperTar))
	if got := h.ingested(u.host() + "/some/image:1"); got.State != wire.StateReady || refused.Load() < 2 {
		t.Errorf("the image is %+v after %d questions, want it ready after two or more", got, refused.Load())
	}
	if again := u.requests("GET /v2/some/image/blobs/" + digest.FromBytes(gzipped(lowerTar)).String()); len(again) > 0 {
		t.Errorf("the hub has read a layer again: %q", again)
	}
	client.do("HEAD", "/v2/some/image/manifests/1", nil, "Accept", v1.MediaTypeImageManifest)
	h.awaitMetric(`lighter_hub_push_through_images_total{result="queued"} 1`)
}

// A tag that a client finds at the registry is ingested, because the client pushes nothing then.
func TestPushThroughOfWhatTheRegistryHas(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	straight := &testHub{t: t, url: u.server.URL}
	straight.push("some/image:1", image(lowerTar, upperTar))
	h := startHub(t, pushesTo(u))
	h.pusher().do("HEAD", "/v2/some/image/manifests/1", nil, "Accept", v1.MediaTypeImageManifest)
	if got := h.ingested(u.host() + "/some/image:1"); got.State != wire.StateReady {
		t.Errorf("the image is %+v, want it ready", got)
	}
}

// Two pushes of one tag at the same time, of which the hub hears in another order than the
// registry: the hub has the image that the tag stands for.
func TestPushThroughOfOneTagTwice(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	h := startHub(t, pushesTo(u))
	client := h.pusher()
	first, config, blobs := image(lowerTar).build()
	second, secondConfig, secondBlobs := image(lowerTar, upperTar).build()
	for _, b := range slices.Concat(blobs, secondBlobs, [][]byte{config, secondConfig}) {
		client.pushBlob("some/image", b)
	}
	stored, release := make(chan struct{}), make(chan struct{})
	var isLater atomic.Bool
	u.guardBy(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != "PUT" || isLater.Swap(true) {
			return false
		}
		u.app.ServeHTTP(w, req)
		close(stored)
		<-release // the answer is sent when the guard returns
		return true
	})
	var pushes sync.WaitGroup
	pushes.Go(func() { client.pushManifest("some/image", "1", first.MediaType, first) })
	<-stored
	want := client.pushManifest("some/image", "1", second.MediaType, second)
	close(release)
	pushes.Wait()
	h.awaitMetric(`lighter_hub_push_through_images_total{result="moved"} 1`)
	name := u.host() + "/some/image:1"
	if got := h.ingested(name); got.Digest != want.String() || got.State != wire.StateReady {
		t.Errorf("the image is %+v, want %s, ready", got, want)
	}
}

// Requests for other hosts of the hub are not passed on, and the hub's own rules do not matter to
// those that are.
func TestPushThroughByName(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	h := startHub(t, pushesTo(u), func(c *hub.Config) { c.AdminTokenFile = tokenFile(t) })
	for host, want := range map[string]int{"": 401, "other.example.org": 401, pushHost: 202,
		strings.ToUpper(pushHost) + ":5000": 202} {
		p := *h
		p.host = host
		if status, b, _ := p.do("POST", "/v2/a/blobs/uploads/", nil); status != want {
			t.Errorf("host %q: %d %s, want %d", host, status, b, want)
		}
	}
	p := h.pusher()
	if status, _, _ := p.do("POST", "/v2/a/blobs/uploads/", nil, "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("a page of another site: %d, want 403", status)
	}
	u.server.Close()
	if status, b, _ := p.do("GET", "/v2/", nil); status != 503 || strings.Contains(string(b), "dial") {
		t.Errorf("without the registry: %d %s, want 503 without addresses", status, b)
	}
	for names, host := range map[string]string{"hub.example.org": "r.example.org", "a/b": "r.example.org",
		"p.example.org": "*.example.org"} {
		c := hubConfig(t)
		c.Names = []string{"hub.example.org"}
		c.Registries = append(c.Registries, registries.Registry{Reached: reached(host), PushNames: []string{names}})
		if err := c.Check(); err == nil {
			t.Errorf("push_names %q of %s are accepted", names, host)
		}
	}
}
