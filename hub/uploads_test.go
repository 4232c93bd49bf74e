package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// hasLayer reports whether a layer is known, by its blob and its tar stream.
func (h *testHub) hasLayer(blob, tar []byte) bool {
	h.t.Helper()
	_, verified, err := h.Catalog().HasLayer(h.t.Context(), digest.FromBytes(tar).String(),
		digest.FromBytes(blob).String())
	if err != nil {
		h.t.Fatal(err)
	}
	return verified
}

// awaitLayer waits until a layer is known. After 30 s it fails the test.
func (h *testHub) awaitLayer(blob, tar []byte) {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); !h.hasLayer(blob, tar); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatal("after 30 s, the pushed layer is not known")
		}
	}
}

// beginUpload begins to push a blob. It returns the path and query of the upload.
func (h *testHub) beginUpload() string {
	h.t.Helper()
	status, body, header := h.do("POST", "/v2/a/blobs/uploads/", nil)
	if status != http.StatusAccepted {
		h.t.Fatalf("begin to push a blob: %d %s, want 202", status, body)
	}
	return h.uploadOf(header)
}

func (h *testHub) uploadOf(header http.Header) string {
	h.t.Helper()
	to, err := url.Parse(header.Get("Location"))
	if err != nil {
		h.t.Fatal(err)
	}
	return to.RequestURI()
}

// patch pushes a part of a blob that begins at an offset, and returns the upload.
func (h *testHub) patch(upload string, at int, b []byte) string {
	h.t.Helper()
	status, body, header := h.do("PATCH", upload, b, "Content-Type", "application/octet-stream",
		"Content-Range", fmt.Sprintf("%d-%d", at, at+len(b)-1))
	if status != http.StatusAccepted {
		h.t.Fatalf("push a part of a blob: %d %s, want 202", status, body)
	}
	return h.uploadOf(header)
}

// A layer is known as soon as it was pushed, before its image is. The image is ready then.
func TestLayersAreSplitWhileTheyArePushed(t *testing.T) {
	t.Parallel()
	for name, push := range map[string]func(h *testHub, b []byte){
		"in one request": func(h *testHub, b []byte) { h.pushBlob("a", b) },
		"in parts": func(h *testHub, b []byte) {
			upload := h.beginUpload()
			part := len(b)/3 + 1
			for at := 0; at < len(b); at += part {
				upload = h.patch(upload, at, b[at:min(at+part, len(b))])
			}
			if status, body, _ := h.do("PUT", upload+"&digest="+digest.FromBytes(b).String(), nil); status != 201 {
				h.t.Fatalf("end the push of a blob: %d %s, want 201", status, body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.Uploads().MinBytes = 1000
			blob := gzipped(lowerTar)
			push(h, blob)
			h.awaitLayer(blob, lowerTar)
			image := h.pushReady("a:1", image(lowerTar, upperTar))
			if problems := h.problems("a:1"); problems != "" {
				t.Errorf("problems of %s: %s, want none", image.Name, problems)
			}
		})
	}
}

// Uploads that cannot be split do not matter to the client, and nothing of them is known.
func TestUploadsThatAreNotSplit(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.Uploads().MinBytes = 1000
	blob := gzipped(lowerTar)
	for name, push := range map[string]func(){
		"no layer": func() { h.pushBlob("a", bytes.Repeat([]byte("no layer"), 1000)) },
		"another digest": func() {
			status, body, _ := h.do("PUT", h.beginUpload()+"&digest="+digest.FromString("other").String(), blob)
			if status != http.StatusBadRequest {
				t.Errorf("push with another digest: %d %s, want 400", status, body)
			}
		},
		"given up": func() { h.patch(h.beginUpload(), 0, blob[:2000]) },
		"continued after a restart": func() {
			upload := h.patch(h.beginUpload(), 0, blob[:2000])
			h = h.restart()
			h.Uploads().MinBytes = 1000
			h.patch(upload, 2000, blob[2000:])
		},
		"broken": func() {
			req, err := http.NewRequestWithContext(t.Context(), "PATCH", h.url+h.beginUpload(),
				io.MultiReader(bytes.NewReader(blob[:2000]), &failing{}))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(len(blob))
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
				t.Errorf("a request that broke off was answered with %s", res.Status)
			}
		},
	} {
		push()
		if h.hasLayer(blob, lowerTar) {
			t.Fatalf("%s: the layer is known", name)
		}
	}
	h.pushReady("a:1", image(lowerTar))
}

// failing is a request's body that breaks off.
type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A layer that was pushed without an image is removed by a collection. An image with it becomes
// ready afterwards.
func TestLayerWithoutAnImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.Uploads().MinBytes = 1000
	blob := gzipped(lowerTar)
	h.pushBlob("a", blob)
	h.awaitLayer(blob, lowerTar)
	h.collect(0)
	if h.hasLayer(blob, lowerTar) {
		t.Error("after a collection, the layer is still known")
	}
	if left := h.holdings().objects; len(left) > 0 {
		t.Errorf("after a collection, the bucket has %q, want nothing", left)
	}
	h.pushReady("a:1", image(lowerTar))
	h.consistent()
}
