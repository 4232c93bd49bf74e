//go:build runtimes

package buildkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/node/front/containerd"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

// buildKitsNamespace is the namespace of BuildKit in containerd.
const buildKitsNamespace = "buildkit"

// containerdWorker starts a buildkitd that uses the machine's containerd, in place of the shared
// builder until end is called: a node has one socket for BuildKit.
func containerdWorker(t *testing.T) (b builder, end func()) {
	t.Helper()
	s := shared.Site
	shared.prune(t)
	if err := shared.Stop(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(filepath.Dir(s.Machine.NodeRoot()), "containerd.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	plugin := fmt.Sprintf("[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n", containerd.BuildKitName,
		containerd.BuildKitSocket(s.Machine.NodeRoot()))
	configure := func(text []byte) {
		t.Helper()
		err := os.WriteFile(config, text, 0o600)
		if err := errors.Join(err, s.Machine.RestartContainerd(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	configure(slices.Concat(text, []byte(plugin)))
	b, err = newBuilder(t.Context(), s, "worker", fmt.Sprintf(`[worker.oci]
  enabled = false
[worker.containerd]
  enabled = true
  address = %q
  namespace = %q
  snapshotter = %q
  gc = false
  networkMode = "host"
`, s.Machine.ContainerdSocket(), buildKitsNamespace, containerd.BuildKitName))
	if err != nil {
		t.Fatal(err)
	}
	return b, func() {
		t.Helper()
		b.prune(t)
		isEmpty(t)
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		configure(text)
		if err := shared.StartAgain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// contents returns the digests of the blobs that containerd has for BuildKit.
func contents(t *testing.T) string {
	t.Helper()
	out, err := shared.Site.Machine.CtrIn(t.Context(), buildKitsNamespace, "content", "ls", "-q")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// With BuildKit's containerd worker, FROM is lazy, too. The built image is the one that is built on
// unpacked images, byte for byte, and can be pushed without its base image. With store=true, the
// default, BuildKit downloads the base image for containerd's image store.
func TestContainerdWorker(t *testing.T) {
	epoch := []string{"--opt", "build-arg:SOURCE_DATE_EPOCH=1000000003"}
	plain.build(t, stages, append(epoch, "--output", push("unpacked"))...)
	b, end := containerdWorker(t)
	defer end()
	var out string
	moved := images.Received(t, shared.Site, func() {
		out = b.output(t, python+" AS run\nRUN python3 /app/hello.py > /out"+scratch)
	})
	if out != "hello\n" {
		t.Errorf("the build step printed %q, want hello", out)
	}
	if whole := images.Size(t, "python"); moved > whole/3 {
		t.Errorf("the build received %d bytes, want a third of the image's %d at most", moved, whole)
	}
	has := contents(t)
	for _, layer := range images.Manifest(t, "python").Layers {
		if strings.Contains(has, layer.Digest.String()) {
			t.Errorf("containerd has layer %s of python, want none of its layers", layer.Digest)
		}
	}
	moved = images.Received(t, shared.Site, func() {
		b.build(t, stages, append(epoch, "--output", push("worker")+",store=false")...)
	})
	if limit := images.Size(t, "python") / 3; moved > limit {
		t.Errorf("build and push received %d bytes, want %d at most", moved, limit)
	}
	if want, got := remoteManifest(t, "unpacked"), remoteManifest(t, "worker"); got != want {
		t.Errorf("manifest of the image that was built on a lazy image:\n%s\nwant:\n%s", got, want)
	}
	if err := shared.Site.Machine.RemoveImage(t.Context(), site.Reference("worker")); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Site.Machine.Pull(t.Context(), site.Overlayfs, site.Reference("worker")); err != nil {
		t.Errorf("pull the built image: %v", err)
	}
}
