//go:build runtimes

package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/wire"
)

// withLayers is the namespace of containerd that has the layers of lazy images: the node fetches
// them when somebody reads them.
const withLayers = "layers"

// startWithLayers starts an engine whose namespace has the layers of lazy images.
func startWithLayers(t *testing.T) engine {
	t.Helper()
	s := shared.Site
	e, err := newEngine(s, filepath.Join(s.Dir, withLayers), dockerd.Configuration(site.Lighter),
		"--containerd-namespace", withLayers)
	if err == nil {
		err = e.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.prune(t)
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// BuildKit builds on a lazy image without fetching its layers, if containerd has them.
func TestBuildKitWithLayers(t *testing.T) {
	e := startWithLayers(t)
	ref := site.Reference("python")
	e.pull(t, ref)
	moved := images.Received(t, shared.Site, func() {
		e.progress(t, "/build?version=2&t=built:1&networkmode=none",
			buildContext(t, strings.ReplaceAll(dockerfile, "FROM-IMAGE", ref)))
	})
	if whole := images.Size(t, "python"); moved > whole/3 {
		t.Errorf("the build received %d bytes, want at most a third of the image's %d", moved, whole)
	}
	if out := e.run(t, "built:1"); out != "built\nof the context\nhello\n" {
		t.Errorf("the built image prints %q", out)
	}
}

// docker save and docker push have all layers of an image that was pulled lazily, and of images
// that were committed and built on it.
func TestPushAndSave(t *testing.T) {
	e := startWithLayers(t)
	ref := site.Reference("python")
	moved := images.Received(t, shared.Site, func() {
		e.pull(t, ref)
		e.run(t, ref, "python3", "/app/hello.py")
	})
	if whole := images.Size(t, "python"); moved > whole/3 {
		t.Errorf("pull and run received %d bytes, want at most a third of the image's %d", moved, whole)
	}
	saved(t, e, ref, len(images.Manifest(t, "python").Layers))
	pushed(t, e, ref, "pushed")

	base := site.Reference("base")
	e.pull(t, base)
	c := e.create(t, base, "sh", "-c", "echo changed > /etc/issue")
	c.start(t)
	e.post(t, "/containers/"+c.id+"/wait", nil, nil)
	e.post(t, "/commit?repo=committed&tag=1&container="+c.id, map[string]any{}, nil)
	e.progress(t, "/build?version=1&t=built:1&networkmode=none",
		buildContext(t, strings.ReplaceAll(dockerfile, "FROM-IMAGE", base)))
	pushed(t, e, "committed:1", "committed")
	saved(t, e, "committed:1", 2)
	saved(t, e, "built:1", 3)
	pushed(t, e, "built:1", "built")
	// Another machine can run what was pushed.
	shared.pull(t, site.Reference("built"))
	if out := shared.run(t, site.Reference("built")); out != "built\nof the context\nhello\n" {
		t.Errorf("the pushed image prints %q", out)
	}
}

// docker push through the hub brings the image to the registry, and the hub makes it ready, without
// a pull. So another machine pulls it lazily.
func TestPushThroughTheHub(t *testing.T) {
	e := startWithLayers(t)
	e.pull(t, site.Reference("base"))
	e.progress(t, "/build?version=1&t=through:1&networkmode=none",
		buildContext(t, strings.ReplaceAll(dockerfile, "FROM-IMAGE", site.Reference("base"))))
	h := e.Site.Hub
	pushedTo(t, e, "through:1", h.PushReference("through"))
	ref := site.Reference("through")
	eventually.Holds(t, ref+" to be ready", func() bool {
		state, err := h.State(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return state == wire.StateReady
	})
	shared.pull(t, ref)
	if out := shared.run(t, ref); out != "built\nof the context\nhello\n" {
		t.Errorf("the pushed image prints %q", out)
	}
}

// saved checks that docker save writes an archive with every blob of an image.
func saved(t *testing.T, e engine, image string, layers int) {
	t.Helper()
	res, err := e.Request(t.Context(), http.MethodGet, "/images/"+image+"/get", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	sums, manifests := map[string]bool{}, map[string]ocispec.Manifest{}
	for archive := tar.NewReader(res.Body); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("docker save %s: %v", image, err)
		}
		if hex := strings.TrimPrefix(header.Name, "blobs/sha256/"); hex != header.Name && hex != "" {
			text, err := io.ReadAll(archive)
			if sum := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || sum != hex {
				t.Fatalf("docker save %s: blob %s has the digest %s (%v)", image, hex, sum, err)
			}
			var m ocispec.Manifest
			if json.Unmarshal(text, &m) == nil && len(m.Layers) > 0 {
				manifests[hex] = m
			}
			sums["sha256:"+hex] = true
		}
	}
	if len(manifests) != 1 {
		t.Fatalf("docker save %s: the archive has %d manifests, want one", image, len(manifests))
	}
	for _, m := range manifests {
		if len(m.Layers) != layers {
			t.Errorf("docker save %s: the manifest has %d layers, want %d", image, len(m.Layers), layers)
		}
		for _, blob := range append(m.Layers, m.Config) {
			if !sums[blob.Digest.String()] {
				t.Errorf("docker save %s: the archive lacks the blob %s", image, blob.Digest)
			}
		}
	}
}

// pushed pushes an image under a name, and checks that the registry has every blob of it.
func pushed(t *testing.T, e engine, image, name string) {
	t.Helper()
	pushedTo(t, e, image, site.Reference(name))
}

// pushedTo does the same with a reference.
func pushedTo(t *testing.T, e engine, image, ref string) {
	t.Helper()
	repository, tag := dockerd.CutTag(ref)
	e.post(t, "/images/"+image+"/tag?"+url.Values{"repo": {repository}, "tag": {tag}}.Encode(), nil, nil)
	e.progress(t, "/images/"+repository+"/push?tag="+tag, nil)
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := e.Site.Machine.Command(t.Context(), "skopeo", "copy", "--src-tls-verify=false", "--insecure-policy",
		"docker://"+repository+":"+tag, "oci:"+copied+":latest"); err != nil {
		t.Errorf("docker push %s: the registry does not have all of it: %v: %s", image, err, out)
	}
}
