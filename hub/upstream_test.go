package hub_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/test/testkit/tarball"
	"lighter/wire"

	"lighter/hub"
)

// layerOf returns the digest and the bytes of the blob that image makes of a tar file.
func layerOf(tar []byte) (digest.Digest, []byte) {
	b := gzipped(tar)
	return digest.FromBytes(b), b
}

// stores reports whether the hub's registry stores a blob.
func (h *testHub) stores(d digest.Digest) bool {
	h.t.Helper()
	_, err := os.Stat(h.blobFile(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Fatal(err)
	}
	return err == nil
}

// getBlob requests a blob, and returns the status, the header and as much of the body as arrives.
func (h *testHub) getBlob(repository string, d digest.Digest, header ...string) (int, http.Header, []byte, error) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), "GET", h.url+"/v2/"+repository+"/blobs/"+d.String(), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, b, err
}

// expectBlob checks that the hub serves a blob.
func (h *testHub) expectBlob(repository string, d digest.Digest, want []byte) {
	h.t.Helper()
	if status, _, b, err := h.getBlob(repository, d); status != 200 || err != nil || !bytes.Equal(b, want) {
		h.t.Errorf("blob %s of %s: %d, %d bytes, %v, want %d bytes", d, repository, status, len(b), err, len(want))
	}
}

// added adds an image, and fails the test unless it becomes ready.
func (h *testHub) added(add wire.Add) wire.Image {
	h.t.Helper()
	last, err := h.add(add)
	if err != nil || len(last.Images) == 0 || last.Images[0].State != wire.StateReady {
		h.t.Fatalf("add %+v: %+v, %v, want a ready image", add, last, err)
	}
	return last.Images[0]
}

// The layers of an added image are ingested, but not stored in the hub's registry. The hub reads
// them from the other registry when a client wants them, also after a restart.
func TestLayersOfAddedImagesStayUpstream(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	got := h.added(wire.Add{Source: r.source(), Name: "a:1"})
	manifest, config, _ := image(lowerTar, upperTar).build()
	lower, lowerBytes := layerOf(lowerTar)
	upper, upperBytes := layerOf(upperTar)
	if h.stores(lower) || h.stores(upper) || !h.stores(manifest.Config.Digest) {
		t.Errorf("stored: layers %t and %t, config %t, want the config only",
			h.stores(lower), h.stores(upper), h.stores(manifest.Config.Digest))
	}
	if n := r.asked[lower.String()]; n != 1 {
		t.Errorf("the lower layer was downloaded %d times, want once", n)
	}
	h.fetchTree(got.Chain)
	h = h.restart()
	h.expectBlob("a", manifest.Config.Digest, config)
	h.expectBlob("a", lower, lowerBytes)
	h.expectBlob("a", upper, upperBytes)
	status, _, header := h.do("HEAD", "/v2/a/blobs/"+lower.String(), nil)
	if status != 200 || header.Get("Content-Length") != strconv.Itoa(len(lowerBytes)) ||
		header.Get("Docker-Content-Digest") != lower.String() {
		t.Errorf("HEAD: %d, %v, want 200 with the layer's length and digest", status, header)
	}
	size := len(lowerBytes)
	for asked, want := range map[string][2]int{"bytes=5-9": {5, 10}, "bytes=-7": {size - 7, size},
		"bytes=100-": {100, size}, fmt.Sprintf("bytes=0-%d", size+9): {0, size}, "bytes=0-0": {0, 1}} {
		status, header, b, err := h.getBlob("a", lower, "Range", asked)
		if status != 206 || err != nil || !bytes.Equal(b, lowerBytes[want[0]:want[1]]) ||
			header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", want[0], want[1]-1, size) {
			t.Errorf("range %s: %d, %d bytes, %q, %v, want 206 with the bytes %d to %d", asked, status, len(b),
				header.Get("Content-Range"), err, want[0], want[1]-1)
		}
	}
	if status, _, _, _ := h.getBlob("a", lower, "Range", fmt.Sprintf("bytes=%d-", size)); status != 416 {
		t.Errorf("a range beyond the end: %d, want 416", status)
	}
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if n := r.asked[lower.String()]; n != 2 {
		t.Errorf("the lower layer was requested %d times after the add, want once for all readers", n-1)
	}
	// When the image is added again, or under another name, no layer is downloaded.
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	h.added(wire.Add{Source: r.source(), Name: "b:1"})
	if n := r.asked[upper.String()]; n != 2 {
		t.Errorf("the upper layer was requested %d times, want 2, as before", n)
	}
	h.expectBlob("b", upper, upperBytes)
}

// A layer that only another registry has can be read in those repositories to which images with the
// layer were added from there, and in no others.
func TestUpstreamLayersKeepToTheirRepositories(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	lower, lowerBytes := layerOf(lowerTar)
	manifest, config, _ := image(lowerTar).build()
	if status, _, _, _ := h.getBlob("b", lower); status != 404 {
		t.Errorf("another repository: %d, want 404", status)
	}
	h.expect("/v2/b/blobs/"+lower.String(), http.StatusNotFound)
	// A mount into another repository fails, so the client has to upload the layer. A manifest
	// pushed there without the layer is refused.
	if status, _, _ := h.do("POST", "/v2/b/blobs/uploads/?mount="+lower.String()+"&from=a", nil); status != 202 {
		t.Errorf("mount: %d, want 202", status)
	}
	h.pushBlob("b", config)
	put := func(repository string) int {
		b := r.manifest
		status, _, _ := h.do("PUT", "/v2/"+repository+"/manifests/2", b, "Content-Type", manifest.MediaType)
		return status
	}
	if status := put("b"); status != 400 {
		t.Errorf("a manifest without its layer: %d, want 400", status)
	}
	// In its own repository the layer exists, so a push may rely on it.
	if status := put("a"); status != 201 {
		t.Errorf("a manifest whose layer is upstream: %d, want 201", status)
	}
	if got := h.ready("a:2"); got.Chain == "" || h.stores(lower) {
		t.Errorf("image %+v, layer stored: %t, want a ready image and no stored layer", got, h.stores(lower))
	}
	// If a client uploads the layer to another repository, the registry stores it. Both
	// repositories serve it.
	h.pushReady("c:1", image(lowerTar))
	h.expectBlob("c", lower, lowerBytes)
	h.expectBlob("a", lower, lowerBytes)
	if !h.stores(lower) {
		t.Error("a pushed layer is not stored")
	}
	// An image whose stored layer its source lacks can be added.
	liar := startRegistry(t, image(lowerTar, upperTar))
	delete(liar.blobs, lower)
	if _, err := h.add(wire.Add{Source: liar.source(), Name: "d:1"}); err != nil {
		t.Fatal(err) // the registry stores the layer since it was pushed
	}
}

// If an image of one registry names a layer that only another registry has, adding the image does
// not make the layer readable in the image's repository.
func TestNamingADigestIsNoAccess(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	owner := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: owner.source(), Name: "a:1"})
	lower, good := layerOf(lowerTar)
	liar := startRegistry(t, image(lowerTar, upperTar))
	delete(liar.blobs, lower)
	if _, err := h.add(wire.Add{Source: liar.source(), Name: "b:1"}); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("add an image with a missing layer: %v, want an error with 404", err)
	}
	liar.blobs[lower] = []byte("a lie")
	if _, err := h.add(wire.Add{Source: liar.source(), Name: "b:1"}); err == nil {
		t.Error("a layer of another size was accepted")
	}
	for _, name := range []string{"b", "c"} {
		if status, _, _, _ := h.getBlob(name, lower); status != 404 {
			t.Errorf("%s serves the layer: %d, want 404", name, status)
		}
	}
	// The hub has ingested the layer, so it does not read it again when a registry claims to have
	// it. Clients of the new repository get an error, because that registry's bytes are wrong.
	liar.blobs[lower] = make([]byte, len(good))
	h.added(wire.Add{Source: liar.source(), Name: "b:1"})
	if status, _, b, err := h.getBlob("b", lower); err == nil && status < 300 {
		t.Errorf("b serves the layer: %d, %d bytes, want an error", status, len(b))
	}
	h.expectBlob("a", lower, good)
}

// faultyUpstreams returns changes after which a registry does not send a layer any more, each with
// the status and the text of the hub's answer.
func faultyUpstreams(t *testing.T, lower digest.Digest) map[string]struct {
	change func(r *fakeRegistry)
	status int
	want   string
} {
	refuse := func(status int) func(r *fakeRegistry) {
		return func(r *fakeRegistry) {
			r.spoil = func(w http.ResponseWriter, _ *http.Request, _ digest.Digest, _ []byte) bool {
				w.WriteHeader(status)
				return true
			}
		}
	}
	return map[string]struct {
		change func(r *fakeRegistry)
		status int
		want   string
	}{
		"away":    {func(r *fakeRegistry) { r.server.Close() }, 503, "try again when that registry answers"},
		"deleted": {func(r *fakeRegistry) { delete(r.blobs, lower) }, 404, "push the image to the hub"},
		"denied":  {refuse(http.StatusForbidden), 403, "[[registry]]"},
		"a login": {func(r *fakeRegistry) { r.user = "somebody" }, 403, "[[registry]]"},
	}
}

// If another registry does not send a layer, a pull without the snapshotter gets an error that says
// what to do. Nodes still read the ingested image.
func TestUpstreamIsAway(t *testing.T) {
	t.Parallel()
	lower, lowerBytes := layerOf(lowerTar)
	for name, c := range faultyUpstreams(t, lower) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			r := startRegistry(t, image(lowerTar, upperTar))
			got := h.added(wire.Add{Source: r.source(), Name: "a:1"})
			c.change(r)
			status, _, body, err := h.getBlob("a", lower)
			if status != c.status || err != nil || !bytes.Contains(body, []byte(c.want)) ||
				!bytes.Contains(body, []byte(`"errors"`)) || !bytes.Contains(body, []byte("some/image")) {
				t.Errorf("the layer: %d %s, %v, want %d with %q", status, body, err, c.status, c.want)
			}
			if status, _, _ := h.do("HEAD", "/v2/a/blobs/"+lower.String(), nil); status != c.status {
				t.Errorf("HEAD: %d, want %d", status, c.status)
			}
			h.fetchTree(got.Chain)
			if problems := h.problems("a:1"); !strings.Contains(problems, c.want) {
				t.Errorf("verify: %s, want %q", problems, c.want)
			}
			// A push of the image makes the layer readable again.
			h.push("a:2", image(lowerTar, upperTar))
			h.expectBlob("a", lower, lowerBytes)
		})
	}
}

// If another registry sends a wrong layer, no client of the hub gets a complete answer.
func TestUpstreamLies(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	lower, good := layerOf(lowerTar)
	for name, change := range map[string]func(b []byte) []byte{
		"the first byte": func(b []byte) []byte { b[0] ^= 1; return b },
		"the last byte":  func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"shorter":        func(b []byte) []byte { return b[:len(b)-1] },
		"longer":         func(b []byte) []byte { return append(b, 0) },
	} {
		r.spoil = func(w http.ResponseWriter, _ *http.Request, _ digest.Digest, b []byte) bool {
			_, _ = w.Write(change(bytes.Clone(b)))
			return true
		}
		for _, asked := range []string{"", "bytes=0-0", "bytes=10-99", fmt.Sprintf("bytes=100-%d", len(good)-1)} {
			header := []string{"Accept", "*/*"}
			if asked != "" {
				header = append(header, "Range", asked)
			}
			if status, _, b, err := h.getBlob("a", lower, header...); err == nil && status < 300 {
				t.Errorf("%s, range %q: %d with %d bytes and no error, want an error", name, asked, status, len(b))
			}
		}
	}
	r.spoil = nil
	h.expectBlob("a", lower, good)
}

// Many clients that read a layer at the same time share one request to the other registry, and read
// the bytes while they arrive. A client that closes its connection does not disturb the others.
func TestUpstreamLayerIsFetchedOnceForManyReaders(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	lower, good := layerOf(lowerTar)
	r.asked = map[string]int{}
	_, release := r.holdBlobs(t)
	ctx, leave := context.WithCancel(t.Context())
	request := func(ctx context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "GET", h.url+"/v2/a/blobs/"+lower.String(), nil)
		if err != nil {
			return nil, err
		}
		return http.DefaultClient.Do(req)
	}
	first, err := request(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	if _, err := io.ReadFull(first.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	var all, begun sync.WaitGroup
	for range 8 {
		begun.Add(1)
		all.Go(func() {
			res, err := request(t.Context())
			if err != nil {
				t.Error(err)
				begun.Done()
				return
			}
			defer res.Body.Close()
			begin := make([]byte, 1000)
			_, err = io.ReadFull(res.Body, begin)
			begun.Done()
			rest, restErr := io.ReadAll(res.Body)
			if err := errors.Join(err, restErr); err != nil || !bytes.Equal(append(begin, rest...), good) {
				t.Errorf("a client received %d bytes of %d, %v", len(begin)+len(rest), len(good), err)
			}
		})
	}
	begun.Wait() // all clients have received the first bytes
	leave()
	release()
	all.Wait()
	if n := r.asked[lower.String()]; n != 1 {
		t.Errorf("the layer was requested %d times, want once", n)
	}
	if left, _ := filepath.Glob(filepath.Join(h.config.Root, "scratch", "upstream-*")); len(left) > 0 {
		t.Errorf("files in the scratch directory: %q, want none", left)
	}
}

// Layers that the hub can read only with a user's login are stored by default. They are not if the
// hub has a login of its own.
func TestLayersBehindALogin(t *testing.T) {
	t.Parallel()
	lower, good := layerOf(lowerTar)
	for name, c := range map[string]struct {
		keep  string
		login bool // the hub has its own login
		want  bool // the layer is stored
	}{
		"by default":       {"until-upstream", false, true},
		"with a login":     {"until-upstream", true, false},
		"always":           {"always", true, true},
		"never, no login":  {"never", false, false},
		"never, and login": {"never", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRegistry(t, image(lowerTar))
			r.user, r.password = "somebody", "secret"
			logins := filepath.Join(t.TempDir(), "logins")
			host := strings.TrimPrefix(r.server.URL, "http://")
			write(t, logins, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host,
				base64.StdEncoding.EncodeToString([]byte("somebody:secret"))))
			h := startHub(t, func(config *hub.Config) {
				if config.KeepBlobs = c.keep; c.login {
					config.Registries[0].Logins = logins
				}
			})
			if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err == nil {
				t.Error("an image was added without the user's login, want an error")
			}
			h.added(wire.Add{Source: r.source(), Name: "a:1", Username: "somebody", Password: "secret"})
			if h.stores(lower) != c.want {
				t.Errorf("the layer is stored: %t, want %t", h.stores(lower), c.want)
			}
			if !c.want && !c.login {
				if status, _, body, _ := h.getBlob("a", lower); status != 403 ||
					!bytes.Contains(body, []byte("[[registry]]")) {
					t.Errorf("%d %s, want 403 and what to do", status, body)
				}
				return
			}
			h.expectBlob("a", lower, good)
		})
	}
}

// If an image was added from two registries, and one of them does not answer, the hub reads its
// layers from the other one.
func TestSecondUpstream(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	lower, good := layerOf(lowerTar)
	first, second := startRegistry(t, image(lowerTar)), startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: first.source(), Name: "a:1"})
	h.added(wire.Add{Source: second.source(), Name: "a:1"})
	first.server.Close()
	h.expectBlob("a", lower, good)
	delete(second.blobs, lower)
	h = h.restart()
	if status, _, body, err := h.getBlob("a", lower); err != nil || status < 400 ||
		!bytes.Contains(body, []byte(strings.TrimPrefix(first.server.URL, "http://"))) ||
		!bytes.Contains(body, []byte(strings.TrimPrefix(second.server.URL, "http://"))) {
		t.Errorf("%d %s, %v, want an error about both registries", status, body, err)
	}
}

// The hub serves the layers of all images of an added index, also those of an image that failed.
func TestLayersOfAnIndexStayUpstream(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.Platforms = []string{"linux/amd64", "linux/arm64"} })
	r := startRegistry(t, image())
	bad := tarball.Of(tarball.Link("a", "b"))
	r.serveIndex(t, part{image: image(lowerTar), platform: amd64}, part{image: image(bad), platform: arm64})
	_, _ = h.add(wire.Add{Source: r.source(), Name: "a:1"}) // one of them fails
	if got := states(h.settled("a:1")); got != "linux/amd64=ready linux/arm64/v8=failed" {
		t.Errorf("the name refers to %s, want linux/amd64 ready and linux/arm64/v8 failed", got)
	}
	for _, tar := range [][]byte{lowerTar, bad} {
		d, want := layerOf(tar)
		if h.stores(d) {
			t.Errorf("layer %s is stored", d)
		}
		h.expectBlob("a", d, want)
	}
}

// If a ready image is added again while one of its layers is being deleted, the add waits for the
// deletion, and succeeds.
func TestAddWaitsForADeletion(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	lower, _ := layerOf(lowerTar)
	_, may, err := h.Catalog().Blobs.BeginAny(t.Context(), lower.String(), time.Second)
	if err != nil || !may {
		t.Fatalf("begin a deletion: %t, %v, want true", may, err)
	}
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
}
