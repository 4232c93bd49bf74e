//go:build e2e

package node

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	tars "lighter/test/testkit/tarball"
)

// A node whose program lies on a lazy image would wait for itself. So a node refuses to start from
// a mounted tree and from a container's root. The same program starts from a disk, and from an
// EROFS image that no node serves.
func TestProgramOnALazyImage(t *testing.T) {
	program, err := os.ReadFile(lighter)
	if err != nil {
		t.Fatal(err)
	}
	addProgram(t, program)
	d := startNode(t, newRoot(t), "--address", "")
	dir, merged := t.TempDir(), t.TempDir()
	run(t, "mount", "--root", d.root, "program:1", dir).good()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // if the test fails
	tree := status(t, d.root).Mounts[0].Dir
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+tree+":"+t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	for _, at := range []string{dir, merged} {
		root := newRoot(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, filepath.Join(at, "lighter"), "node", "--root", root, "--address",
			"").CombinedOutput()
		cancel()
		if err == nil || !bytes.Contains(out, []byte("lies on an image that a lighter node serves")) ||
			bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("a node from %s: %v, want an error of one line that names the cause: %s", at, err, out)
		}
		if _, err := os.Stat(root); err == nil {
			t.Errorf("a node from %s made its root, want no files of a refused node", at)
		}
	}
	if err := unix.Unmount(merged, 0); err != nil {
		t.Error(err)
	}
	run(t, "unmount", "--root", d.root, dir).good()

	plain, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(filepath.Join(plain, "lighter"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	built := lighter
	t.Cleanup(func() { lighter = built })
	lighter = filepath.Join(plain, "lighter")
	startNode(t, newRoot(t), "--address", "")
	erofs := t.TempDir()
	if out, err := exec.Command("sh", "-ec", "mkfs.erofs --quiet $1 $2 && mount -t erofs -o loop $1 $3", "sh", image,
		plain, erofs).CombinedOutput(); err != nil {
		t.Fatalf("make an EROFS image: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(erofs, unix.MNT_DETACH) })
	lighter = filepath.Join(erofs, "lighter")
	startNode(t, newRoot(t), "--address", "")
}

// addProgram adds the image program:1 to the hub. It contains the lighter binary.
func addProgram(t *testing.T, program []byte) {
	t.Helper()
	addLayer(t, tars.Of(tars.File("lighter", string(program), tars.Mode(0o755))))
}

// addLayer adds the image program:1, which has one layer, to the hub.
func addLayer(t *testing.T, blob []byte) {
	t.Helper()
	addImage(t, "program:1", blob, v1.Config{})
}

// addImage adds an image with one layer, and what a container of it runs, to the hub.
func addImage(t *testing.T, name string, blob []byte, runs v1.Config) {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blob)),
			nil
	},
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON), layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", "amd64", runs
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(image,
			layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "1"}),
			layout.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	if added := run(t, "add", "oci:"+dir+":1", name); added.code != 0 {
		t.Fatalf("add %s: exit code %d: %s", name, added.code, added.stderr)
	}
}
