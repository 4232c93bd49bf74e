//go:build runtimes

package buildkit

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

// builder is a buildkitd of the machine.
type builder struct{ *buildkitd.Builder }

// newBuilder starts a buildkitd with the lines of its workers.
func newBuilder(ctx context.Context, s *site.Site, name, worker string) (builder, error) {
	b, err := buildkitd.Start(ctx, s, name, worker)
	return builder{b}, err
}

func (b builder) restart(t *testing.T) {
	t.Helper()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := b.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// prune removes everything that no build uses.
func (b builder) prune(t *testing.T) {
	t.Helper()
	if _, err := b.Ctl(t.Context(), "prune", "--all"); err != nil {
		t.Fatal(err)
	}
}

// hasNoLayer checks that buildkitd has downloaded no layer of an image.
func (b builder) hasNoLayer(t *testing.T, name string) {
	t.Helper()
	for _, layer := range images.Manifest(t, name).Layers {
		found, err := filepath.Glob(filepath.Join(b.Dir, "root/*/content/blobs/sha256", layer.Digest.Encoded()))
		if err != nil || len(found) > 0 {
			t.Errorf("buildkitd has layer %s of %s (%v), want none of its layers", layer.Digest, name, err)
		}
	}
}

// awaitFile waits until a build step has written a file with a name in the root directory.
func (b builder) awaitFile(t *testing.T, name string) {
	t.Helper()
	const patience = time.Minute
	pattern := filepath.Join(b.Site.Machine.NodeRoot(), "build", "[0-9]*", "fs", name)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no build step has written /%s within %v", name, patience)
		}
	}
}

// tryBuild builds a Dockerfile. args are more arguments of `buildctl build`.
func (b builder) tryBuild(t *testing.T, dockerfile string, args ...string) error {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("from the context\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	return b.Build(t.Context(), dir, args...)
}

func (b builder) build(t *testing.T, dockerfile string, args ...string) {
	t.Helper()
	if err := b.tryBuild(t, dockerfile, args...); err != nil {
		t.Fatalf("build\n%s\n%v", dockerfile, err)
	}
}

// output builds a Dockerfile whose last stage has a file "out", and returns this file's contents.
func (b builder) output(t *testing.T, dockerfile string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	b.build(t, dockerfile, append([]string{"--output", "type=local,dest=" + dir}, args...)...)
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// push returns an output that pushes an image to the site's registry.
func push(name string) string { return "type=image,push=true,name=" + site.Reference(name) }

// remoteManifest returns the manifest of an image in the site's registry.
func remoteManifest(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "skopeo", "inspect", "--raw", "--tls-verify=false",
		"docker://"+site.Reference(name)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// layersOf returns the digests of the layers of an image in the site's registry.
func layersOf(t *testing.T, name string) (digests []string) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal([]byte(remoteManifest(t, name)), &m); err != nil {
		t.Fatal(err)
	}
	for _, layer := range m.Layers {
		digests = append(digests, layer.Digest.String())
	}
	return digests
}
