package hub_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub"
	"lighter/hub/registries"
	"lighter/wire"
	"lighter/wire/client"
)

// testHub is a running hub in a temporary directory.
type testHub struct {
	*hub.Hub
	t      *testing.T
	url    string
	host   string // header Host of requests; empty: that of url
	config hub.Config
	client *client.Client
	stop   func()
	kill   func() // as SIGKILL does: from now on the hub changes nothing in its catalog
}

// startHub runs a hub until the test ends or stop is called. change changes its configuration.
func startHub(t *testing.T, change ...func(*hub.Config)) *testHub {
	t.Helper()
	c := hubConfig(t)
	for _, f := range change {
		f(&c)
	}
	return runHub(t, openHub(t, c))
}

func hubConfig(t *testing.T) hub.Config {
	c := hub.DefaultConfig()
	c.Root = t.TempDir()
	newStores(t, &c)
	c.Listen = "127.0.0.1:0"
	c.Platforms = []string{"linux/amd64"}
	c.Registries = registryTables("127.0.0.1", "localhost")
	c.DiskReserve = 0 // the tests' disk may be small
	// The first periodic collection would be a minute after the start. It would delete the blobs of
	// images that are being added: many of these hubs keep unused blobs for no time at all.
	c.GC.EveryMinutes = 0
	return c
}

// reached says how a registry is reached that may have an address that is not public.
func reached(host string) registries.Reached { return registries.Reached{Host: host, Private: true} }

// registryTables are tables of registries that may have addresses that are not public.
func registryTables(hosts ...string) (all []registries.Registry) {
	for _, host := range hosts {
		all = append(all, registries.Registry{Reached: reached(host)})
	}
	return all
}

func openHub(t *testing.T, c hub.Config) *hub.Hub {
	t.Helper()
	h, err := hub.Open(t.Context(), c, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func logOf(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// unlogged is a password, or a token, that no log may have.
const unlogged = "never-in-a-log"

// logWriter writes the hub's log to standard error if HUB_LOG is set. The test fails if the log has
// the password unlogged.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(unlogged)) {
		w.t.Errorf("the log has a secret: %s", b)
	}
	if os.Getenv("HUB_LOG") != "" {
		fmt.Fprintf(os.Stderr, "%s: %s", w.t.Name(), b)
	}
	return len(b), nil
}

func runHub(t *testing.T, h *hub.Hub) *testHub {
	t.Helper()
	listener, err := net.Listen("tcp", h.Config().Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- errors.Join(h.Serve(ctx, listener), h.Close()) }()
	th := &testHub{Hub: h, t: t, url: "http://" + listener.Addr().String(), config: h.Config()}
	stopped := false
	th.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hub ended with error %v", err)
		}
	}
	th.kill = func() {
		stopped = true
		_ = h.Catalog().Close()
		cancel()
		<-done // the error is about the closed catalog
	}
	t.Cleanup(th.stop)
	if th.client, err = client.New(client.Options{URL: th.url}); err != nil {
		t.Fatal(err)
	}
	return th
}

// restart stops the hub and runs another one in the same directory.
func (h *testHub) restart() *testHub {
	h.t.Helper()
	h.stop()
	return runHub(h.t, openHub(h.t, h.config))
}

// do sends a request and returns status, body and header.
func (h *testHub) do(method, path string, body []byte, header ...string) (int, []byte, http.Header) {
	h.t.Helper()
	req, err := http.NewRequest(method, h.url+path, bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Host = cmp.Or(h.host, req.Host)
	req.Header.Set("Content-Type", "application/json") // as clients do
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res.StatusCode, b, res.Header
}

// pushBlob pushes a blob as clients do.
func (h *testHub) pushBlob(repository string, b []byte) digest.Digest {
	h.t.Helper()
	d := digest.FromBytes(b)
	status, body, header := h.do("POST", "/v2/"+repository+"/blobs/uploads/", nil)
	if status != http.StatusAccepted {
		h.t.Fatalf("begin to push a blob: %d %s, want 202", status, body)
	}
	to, err := url.Parse(header.Get("Location"))
	if err != nil {
		h.t.Fatal(err)
	}
	q := to.Query()
	q.Set("digest", d.String())
	status, body, _ = h.do("PUT", to.Path+"?"+q.Encode(), b, "Content-Type", "application/octet-stream")
	if status != http.StatusCreated {
		h.t.Fatalf("push a blob: %d %s, want 201", status, body)
	}
	return d
}

// pushManifest pushes a manifest or an index and returns its digest.
func (h *testHub) pushManifest(repository, reference, mediaType string, m any) digest.Digest {
	h.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		h.t.Fatal(err)
	}
	d := digest.FromBytes(b)
	if reference == "" {
		reference = d.String()
	}
	status, body, _ := h.do("PUT", "/v2/"+repository+"/manifests/"+reference, b, "Content-Type", mediaType)
	if status != http.StatusCreated {
		h.t.Fatalf("push a manifest: %d %s, want 201", status, body)
	}
	return d
}

// fakeLayer is a layer of a fakeImage.
type fakeLayer struct {
	tar       []byte
	blob      []byte // default: tar, compressed with gzip
	mediaType string // default: OCI's for gzip
	diffID    digest.Digest
	size      int64
}

// fakeImage is an image made by a test.
type fakeImage struct {
	layers   []fakeLayer
	platform v1.Platform        // default: linux/amd64
	docker   bool               // with the media types of Docker's schema 2
	config   []byte             // instead of the config that the layers imply
	runs     v1.ImageConfig     // what the config says of the process to run
	change   func(*v1.Manifest) // changes the manifest before it is pushed
}

// image returns an image with these layers.
func image(tars ...[]byte) fakeImage {
	var i fakeImage
	for _, t := range tars {
		i.layers = append(i.layers, fakeLayer{tar: t})
	}
	return i
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.HuffmanOnly) // fast; most of the bytes are incompressible
	_, _ = z.Write(b)                                   // to memory
	_ = z.Close()
	return out.Bytes()
}

// build returns the image's manifest, config and blobs.
func (i fakeImage) build() (v1.Manifest, []byte, [][]byte) {
	if i.platform.OS == "" {
		i.platform = v1.Platform{OS: "linux", Architecture: "amd64"}
	}
	layerType, configType, manifestType := v1.MediaTypeImageLayerGzip, v1.MediaTypeImageConfig,
		v1.MediaTypeImageManifest
	if i.docker {
		layerType, configType, manifestType = "application/vnd.docker.image.rootfs.diff.tar.gzip",
			"application/vnd.docker.container.image.v1+json", "application/vnd.docker.distribution.manifest.v2+json"
	}
	config := v1.Image{Platform: i.platform, Config: i.runs, RootFS: v1.RootFS{Type: "layers"}}
	manifest := v1.Manifest{MediaType: manifestType, Layers: []v1.Descriptor{}}
	manifest.SchemaVersion = 2
	var blobs [][]byte
	for _, l := range i.layers {
		if l.blob == nil {
			l.blob = gzipped(l.tar)
		}
		if l.mediaType == "" {
			l.mediaType = layerType
		}
		if l.diffID == "" {
			l.diffID = digest.FromBytes(l.tar)
		}
		if l.size == 0 {
			l.size = int64(len(l.blob))
		}
		blobs = append(blobs, l.blob)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: l.mediaType,
			Digest: digest.FromBytes(l.blob), Size: l.size})
	}
	b := i.config
	if b == nil {
		b, _ = json.Marshal(config) // plain data
	}
	manifest.Config = v1.Descriptor{MediaType: configType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	if i.change != nil {
		i.change(&manifest)
	}
	return manifest, b, blobs
}

// push pushes an image to REPO:TAG, or by digest to REPO, and returns the digest of its manifest.
func (h *testHub) push(name string, i fakeImage) digest.Digest {
	h.t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	manifest, config, blobs := i.build()
	for _, b := range append(blobs, config) {
		h.pushBlob(repository, b)
	}
	return h.pushManifest(repository, tag, manifest.MediaType, manifest)
}

// add adds an image, waits until it is ready or has failed, and returns the last line of the
// answer.
func (h *testHub) add(add wire.Add) (wire.Progress, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	return h.client.Add(ctx, add, silent)
}

// ready waits until a pushed image is ready, and returns it.
func (h *testHub) ready(name string) wire.Image {
	h.t.Helper()
	last, err := h.add(wire.Add{Name: name})
	if err != nil {
		h.t.Fatalf("wait for %s: %v", name, err)
	}
	for _, i := range last.Images {
		if i.State == wire.StateReady {
			return i
		}
	}
	h.t.Fatalf("images of %s: %+v, want one that is ready", name, last.Images)
	return wire.Image{}
}

// pushReady pushes an image, waits until it is ready, and returns it.
func (h *testHub) pushReady(name string, i fakeImage) wire.Image {
	h.t.Helper()
	h.push(name, i)
	return h.ready(name)
}

// settled waits until no image of a name is queued or active, and returns the images.
func (h *testHub) settled(name string) []wire.Image {
	h.t.Helper()
	for range 600 {
		images, err := h.client.Images(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		if !slices.ContainsFunc(images, func(i wire.Image) bool {
			return i.State == wire.StateQueued ||
				i.State == wire.StateActive
		}) {
			return images
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Fatalf("after 12 s, an image of %s is still queued or active", name)
	return nil
}

func silent(wire.Progress) {}
