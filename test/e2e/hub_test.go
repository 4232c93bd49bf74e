//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub"
	"lighter/hub/registries"
	"lighter/test/testkit/tarball"
	"lighter/test/testkit/workdir"
	"lighter/wire"
	"lighter/wire/client"
)

// runningHub is a hub that runs in this process.
type runningHub struct {
	t       *testing.T
	address string // HOST:PORT
	client  *client.Client
}

// startHub starts a hub that runs until the test ends.
func startHub(t *testing.T) *runningHub {
	t.Helper()
	c := hub.DefaultConfig()
	c.Root = t.TempDir()
	c.Registries = []registries.Registry{{Reached: registries.Reached{Host: "127.0.0.1", Private: true}}}
	ctx, cancel := context.WithCancel(context.Background())
	h, err := hub.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(h.Serve(ctx, listener), h.Close()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r := &runningHub{t: t, address: listener.Addr().String()}
	if r.client, err = client.New(client.Options{URL: "http://" + r.address}); err != nil {
		t.Fatal(err)
	}
	return r
}

// skopeo runs skopeo and returns its output.
func skopeo(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "skopeo", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("skopeo %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ready waits until an image of this name is ready, and returns it.
func (r *runningHub) ready(name string) wire.Image {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	last, err := r.client.Add(ctx, wire.Add{Name: name}, func(wire.Progress) {})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, image := range last.Images {
		if image.State == wire.StateReady {
			return image
		}
	}
	r.t.Fatalf("images of %s: got %+v, want one that is ready", name, last.Images)
	return wire.Image{}
}

// blobsOf lists the blobs of an OCI layout, and verifies their digests.
func blobsOf(t *testing.T, layout string) map[string]bool {
	t.Helper()
	blobs := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(layout, "blobs", "sha256"),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			sum := sha256.New()
			if _, err := io.Copy(sum, file); err != nil {
				return err
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != d.Name() {
				t.Errorf("the content of blob %s has the digest %s", d.Name(), got)
			}
			blobs[d.Name()] = true
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return blobs
}

// A client pushes an image, and pulls it unchanged. The hub finds no problem when it verifies the
// image.
func TestHubReturnsPushedImage(t *testing.T) {
	r := startHub(t)
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(work, "images", "python")
	skopeo(t, "copy", "--dest-tls-verify=false", "--preserve-digests", "oci:"+layout+":latest",
		"docker://"+r.address+"/lang/python:3")
	image := r.ready("lang/python:3")
	if want := strings.TrimSpace(skopeo(t, "inspect", "--format", "{{.Digest}}",
		"oci:"+layout+":latest")); image.Digest != want {
		t.Errorf("digest in the hub: got %s, want %s", image.Digest, want)
	}
	back := filepath.Join(t.TempDir(), "back")
	skopeo(t, "copy", "--src-tls-verify=false", "--preserve-digests", "docker://"+r.address+"/lang/python:3",
		"oci:"+back+":latest")
	given, got := blobsOf(t, layout), blobsOf(t, back)
	for name := range given {
		if !got[name] {
			t.Errorf("blob %s is missing after the pull", name)
		}
	}
	verified, err := r.client.Verify(t.Context(), "lang/python:3", func(wire.Progress) {})
	if err != nil || len(verified.Problems) > 0 {
		t.Errorf("verify the image: %v, problems %q, want none", err, verified.Problems)
	}
	// Another hub that copies the image from this one makes the same tree.
	other := startHub(t)
	last, err := other.client.Add(t.Context(), wire.Add{Source: "docker://" + r.address + "/lang/python:3"},
		func(wire.Progress) {})
	if err != nil || len(last.Images) != 1 || last.Images[0].Tree != image.Tree ||
		last.Images[0].Digest != image.Digest {
		t.Errorf("images of the other hub: got %+v (%v), want one with tree %s and digest %s", last.Images, err,
			image.Tree, image.Digest)
	}
}

// layoutWriter writes an OCI layout blob by blob.
type layoutWriter struct {
	t   *testing.T
	dir string
}

// blob writes a blob, and returns its descriptor.
func (l layoutWriter) blob(mediaType string, b []byte) v1.Descriptor {
	l.t.Helper()
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	l.file(filepath.Join("blobs", "sha256", d.Digest.Encoded()), b)
	return d
}

func (l layoutWriter) file(name string, b []byte) {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// json writes v as a blob.
func (l layoutWriter) json(mediaType string, v any) v1.Descriptor {
	l.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.blob(mediaType, b)
}

// image writes an image with one uncompressed layer, and returns the descriptor of its manifest.
func (l layoutWriter) image(p v1.Platform, layerType string, layer []byte) v1.Descriptor {
	l.t.Helper()
	blob := l.blob(layerType, layer)
	config := l.json(v1.MediaTypeImageConfig, v1.Image{Platform: p,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{blob.Digest}}})
	manifest := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{blob}}
	manifest.SchemaVersion = 2
	d := l.json(v1.MediaTypeImageManifest, manifest)
	d.Platform = &p
	return d
}

// writeBuildKitLayout writes a layout as BuildKit makes it: images of two platforms, each with an
// attestation. It returns the descriptor of the index of all four.
func writeBuildKitLayout(t *testing.T, dir string) v1.Descriptor {
	t.Helper()
	l := layoutWriter{t, dir}
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, arch := range []string{"amd64", "arm64"} {
		image := l.image(v1.Platform{OS: "linux", Architecture: arch}, v1.MediaTypeImageLayer,
			tarball.Of(tarball.Dir("etc"), tarball.File("etc/arch", strings.Repeat(arch, 1000))))
		attestation := l.image(v1.Platform{OS: "unknown", Architecture: "unknown"}, "application/vnd.in-toto+json",
			[]byte(`{"about":"`+arch+`"}`))
		attestation.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest",
			"vnd.docker.reference.digest": image.Digest.String()}
		index.Manifests = append(index.Manifests, image, attestation)
	}
	top := l.json(v1.MediaTypeImageIndex, index)
	top.Annotations = map[string]string{v1.AnnotationRefName: "latest"}
	names := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{top}}
	names.SchemaVersion = 2
	b, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	l.file("index.json", b)
	l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return top
}

// The hub stores an image's variants for all platforms, and their attestations. A pull returns all
// of them unchanged. Only the variant for the hub's configured platform becomes ready.
func TestHubKeepsAttestations(t *testing.T) {
	r := startHub(t)
	layout := filepath.Join(t.TempDir(), "layout")
	top := writeBuildKitLayout(t, layout)
	skopeo(t, "copy", "--all", "--preserve-digests", "--dest-tls-verify=false", "oci:"+layout+":latest",
		"docker://"+r.address+"/built:1")
	image := r.ready("built:1")
	if image.Platform != "linux/amd64" {
		t.Errorf("the ready image is %+v, want one for linux/amd64", image)
	}
	images, err := r.client.Images(t.Context(), "built:1")
	if err != nil || len(images) != 4 {
		t.Errorf("images of the hub: got %+v (%v), want 4", images, err)
	}
	for _, i := range images {
		if ready := i.State == wire.StateReady; ready != (i.Platform == "linux/amd64") || !ready &&
			i.State != wire.StateStored {
			t.Errorf("state of the image for %s: got %s, want ready for linux/amd64, else stored", i.Platform, i.State)
		}
	}
	back := filepath.Join(t.TempDir(), "back")
	skopeo(t, "copy", "--all", "--preserve-digests", "--src-tls-verify=false", "docker://"+r.address+"/built:1",
		"oci:"+back+":latest")
	given, got := blobsOf(t, layout), blobsOf(t, back)
	if len(given) != len(got) || !got[top.Digest.Encoded()] {
		t.Errorf("pulled %d of %d blobs, want all; the index is among them: %t", len(got), len(given),
			got[top.Digest.Encoded()])
	}
	// Another hub copies only the image for its platform, with its attestation, and keeps the index
	// unchanged.
	other := startHub(t)
	last, err := other.client.Add(t.Context(), wire.Add{Source: "docker://" + r.address + "/built:1", Name: "built:1"},
		func(wire.Progress) {})
	if err != nil || len(last.Images) != 1 || last.Images[0].Tree != image.Tree {
		t.Errorf("images that the other hub added: got %+v (%v), want one with tree %s", last.Images, err, image.Tree)
	}
	if images, err := other.client.Images(t.Context(), "built:1"); err != nil || len(images) != 2 {
		t.Errorf("images of the other hub: got %+v (%v), want 2", images, err)
	}
	if raw := skopeo(t, "inspect", "--raw", "--tls-verify=false",
		"docker://"+other.address+"/built:1"); digest.FromString(raw) != top.Digest {
		t.Errorf("index of the other hub: got %s, want %s", digest.FromString(raw), top.Digest)
	}
}
