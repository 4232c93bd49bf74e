package hub_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/pullthrough"
)

// basic returns the header of a login.
func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// A private image is read through the hub only by clients whose login the registry accepts, and is
// not ingested.
func TestPullThroughKeepsPrivateImages(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar, upperTar))
	r.user = "user"
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(unlogged+"-hub-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, through(pullthrough.Credentials, r), func(c *hub.Config) { c.AdminTokenFile = token })
	open := startHub(t, through(pullthrough.Anyone, r))
	layer, layerBytes := layerOf(lowerTar)
	right := []string{"Authorization", basic("user", unlogged)}
	r.password = unlogged
	for _, kind := range []string{r.at("manifests", "1"), r.at("blobs", layer.String())} {
		if status, _, header := h.do("GET", kind, nil); status != 401 || header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s without a login: %d, %v, want 401 and a challenge", kind, status, header)
		}
		if status, _, _ := h.do("GET", kind, nil, "Authorization", basic("user", "wrong")); status != 404 {
			t.Errorf("%s with a wrong login: %d, want 404", kind, status)
		}
		if status, b, _ := h.do("GET", kind, nil, right...); status != 200 {
			t.Fatalf("%s with the right login: %d %s, want 200", kind, status, b)
		}
		// What is cached is not for others.
		if status, _, _ := h.do("GET", kind, nil); status != 401 {
			t.Errorf("%s without a login, cached: %d, want 401", kind, status)
		}
		// The token of the hub's administrators goes nowhere, even if the registry would accept it.
		r.password = unlogged + "-hub-token"
		administrator := basic("user", unlogged+"-hub-token")
		if status, _, _ := h.do("GET", kind, nil, "Authorization", administrator); status != 404 {
			t.Errorf("%s with the hub's token: %d, want 404", kind, status)
		}
		r.password = unlogged
		if status, _, _ := open.do("GET", kind, nil, right...); status != 404 {
			t.Errorf("%s of a hub that passes no logins on: %d, want 404", kind, status)
		}
	}
	if status, b, _ := h.do("GET", r.at("blobs", layer.String()), nil, right...); status != 200 ||
		!bytes.Equal(b, layerBytes) {
		t.Errorf("the layer: %d, %d bytes, want it", status, len(b))
	}
	h.awaitMetric(`lighter_hub_pull_through_images_total{result="private"} 1`)
	images, err := h.client.Images(t.Context(), "")
	if err != nil || len(images) > 0 {
		t.Errorf("images: %+v, %v, want none", images, err)
	}
	own := "/v2/" + strings.Replace(r.host(), ":", "_", 1) + "/some/image/"
	for _, path := range []string{own + "manifests/1", own + "blobs/" + layer.String(),
		own + "manifests/" + digest.FromBytes(r.manifest).String()} {
		if status, _, _ := h.do("GET", path, nil); status != 404 {
			t.Errorf("GET %s without a login: %d, want 404", path, status)
		}
	}
}

// awaitMetric waits until the hub's metrics have a line.
func (h *testHub) awaitMetric(line string) {
	h.t.Helper()
	for range 300 {
		if _, b, _ := h.do("GET", "/metrics", nil); bytes.Contains(b, []byte("\n"+line+"\n")) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.t.Fatalf("after 15 s, the metrics lack the line %s", line)
}

// A tag that has moved is noticed when its manifest is no longer fresh. While a registry cannot be
// asked, clients get a tag's last manifest, with a warning. What the hub does not have is answered
// 404, so that clients go on to the registry.
func TestPullThroughWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	h := startHub(t, through(pullthrough.Anyone, r), func(c *hub.Config) {
		c.Registries[len(c.Registries)-1].TagSeconds = 1
	})
	layer, _ := layerOf(lowerTar)
	if status, _, _ := h.do("GET", r.at("manifests", "1"), nil); status != 200 {
		t.Fatalf("manifest: %d, want 200", status)
	}
	r.serve(t, image(upperTar))
	h.eventually("the moved tag is not noticed", func() bool {
		status, b, _ := h.do("GET", r.at("manifests", "1"), nil)
		return status == 200 && bytes.Equal(b, r.manifest)
	})
	asked, _ := r.counts()
	time.Sleep(1100 * time.Millisecond) // longer than tag_seconds
	if status, _, _ := h.do("GET", r.at("manifests", "1"), nil); status != 200 {
		t.Fatalf("manifest: %d, want 200", status)
	}
	if again, _ := r.counts(); again["1"] != asked["1"] {
		t.Errorf("a tag that has not moved was requested %d times more, want HEAD requests only", again["1"]-asked["1"])
	}
	// until repeats a request until its answer has a warning or not.
	until := func(warned bool) {
		t.Helper()
		for range 600 {
			status, b, header := h.do("GET", r.at("manifests", "1"), nil)
			if status != 200 || !bytes.Equal(b, r.manifest) {
				t.Fatalf("manifest: %d, %d bytes, want the last one", status, len(b))
			}
			if (header.Get("Warning") != "") == warned {
				if (header.Get("Age") != "") != warned {
					t.Errorf("header %v, want an age with the warning only", header)
				}
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("after 12 s, the answers' warnings are not: %t", warned)
	}
	r.status.Store(http.StatusServiceUnavailable)
	until(true)
	r.status.Store(0)
	until(false)
	r.status.Store(http.StatusTooManyRequests)
	until(true)
	for _, path := range []string{r.at("manifests", "2"), r.at("blobs", layer.String())} {
		if status, b, header := h.do("GET", path, nil); status != 404 || header.Get("Cache-Control") != "no-store" {
			t.Errorf("GET %s: %d %s, want 404, not to be stored", path, status, b)
		}
	}
	r.status.Store(0) // the registry is not asked before it has had a rest
	if status, _, _ := h.do("GET", r.at("manifests", "2"), nil); status != 404 {
		t.Errorf("while the registry rests: %d, want 404", status)
	}
}

// A registry that lies about a blob, or breaks off, gives clients no wrong bytes, and nothing of it
// stays.
func TestPullThroughFromBadRegistries(t *testing.T) {
	t.Parallel()
	layer, want := layerOf(lowerTar)
	answer := func(with func(b []byte) []byte) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, b []byte) { _, _ = w.Write(with(bytes.Clone(b))) }
	}
	cut := func(w http.ResponseWriter, req *http.Request, b []byte, honest bool) {
		var from int
		if n, _ := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); n == 1 && honest {
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b[:len(b)*99/100])
	}
	for name, bad := range map[string]struct {
		spoil func(http.ResponseWriter, *http.Request, []byte)
		whole bool // the client gets the blob nevertheless
	}{
		"another digest": {spoil: answer(func(b []byte) []byte { b[len(b)/2] ^= 1; return b })},
		"too long":       {spoil: answer(func(b []byte) []byte { return append(b, 1) })},
		"too short":      {spoil: answer(func(b []byte) []byte { return b[:len(b)/2] })},
		"cut at 99 %":    {func(w http.ResponseWriter, req *http.Request, b []byte) { cut(w, req, b, true) }, true},
		"the whole blob instead of a range": {
			func(w http.ResponseWriter, req *http.Request, b []byte) { cut(w, req, b, false) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRegistry(t, image(lowerTar))
			var isBad atomic.Bool
			isBad.Store(true)
			r.spoil = func(w http.ResponseWriter, req *http.Request, d digest.Digest, b []byte) bool {
				if d != layer || !isBad.Load() {
					return false
				}
				bad.spoil(w, req, b)
				return true
			}
			h := startHub(t, through(pullthrough.Anyone, r))
			h.do("GET", r.at("manifests", "1"), nil)
			get := func() ([]byte, error) {
				res, err := http.Get(h.url + r.at("blobs", layer.String()))
				if err != nil {
					return nil, err
				}
				defer res.Body.Close()
				var b bytes.Buffer
				_, err = b.ReadFrom(res.Body)
				if res.StatusCode != 200 {
					return nil, fmt.Errorf("status %d", res.StatusCode)
				}
				return b.Bytes(), err
			}
			if b, err := get(); (err == nil) != bad.whole || err == nil && !bytes.Equal(b, want) {
				t.Errorf("%d bytes, %v, want the whole blob: %t", len(b), err, bad.whole)
			}
			isBad.Store(false)
			if b, err := get(); err != nil || !bytes.Equal(b, want) {
				t.Errorf("when the registry is well: %d bytes, %v, want %d", len(b), err, len(want))
			}
		})
	}
}
