//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// layer describes the blob of an image's layer, and opens it.
type layer struct {
	ocispec.Descriptor
	open func() (content.ReaderAt, error)
}

// ReaderAt implements content.Provider.
func (l layer) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) {
	return l.open()
}

// read calls fn with the layer's tar stream.
func (l layer) read(fn func(io.Reader) error) error {
	blob, err := l.open()
	if err != nil {
		return err
	}
	defer blob.Close()
	stream, err := compression.DecompressStream(content.NewReader(blob))
	if err != nil {
		return err
	}
	defer stream.Close()
	return fn(stream)
}

// memoryLayers returns layers whose blobs are these tar streams.
func memoryLayers(streams [][]byte) []layer {
	layers := make([]layer, len(streams))
	for i, stream := range streams {
		layers[i] = layer{
			ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: int64(len(stream)),
				Digest: digest.FromBytes(stream)},
			func() (content.ReaderAt, error) { return blobReader{bytes.NewReader(stream)}, nil },
		}
	}
	return layers
}

type blobReader struct{ *bytes.Reader }

func (blobReader) Close() error { return nil }

// layersOf returns the layers of the image in an OCI layout, which must have a single image.
func layersOf(dir string) ([]layer, error) {
	var index ocispec.Index
	if err := readJSON(filepath.Join(dir, "index.json"), &index); err != nil {
		return nil, err
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("read the index of %s: got %d manifests, want one", dir, len(index.Manifests))
	}
	blob := func(d ocispec.Descriptor) string {
		return filepath.Join(dir, "blobs", d.Digest.Algorithm().String(), d.Digest.Encoded())
	}
	var manifest ocispec.Manifest
	if err := readJSON(blob(index.Manifests[0]), &manifest); err != nil {
		return nil, err
	}
	layers := make([]layer, len(manifest.Layers))
	for i, d := range manifest.Layers {
		layers[i] = layer{d, func() (content.ReaderAt, error) { return local.OpenReader(blob(d)) }}
	}
	return layers, nil
}

func readJSON(file string, into any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// unpackImage unpacks layers with containerd's snapshotter and applier. It mounts a view of them
// until the test ends, and returns the mount point. An error means that containerd refuses a layer.
func unpackImage(t testing.TB, layers []layer) (string, error) {
	t.Helper()
	ctx := context.Background()
	root := scratch(t)
	sn, err := overlay.NewSnapshotter(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sn.Close() })
	parent := ""
	for i, layer := range layers {
		key := fmt.Sprintf("extract-%d", i)
		mounts, err := sn.Prepare(ctx, key, parent)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := apply.NewFileSystemApplier(layer).Apply(ctx, layer.Descriptor, mounts); err != nil {
			return "", err
		}
		parent = fmt.Sprintf("layer-%d", i)
		if err := sn.Commit(ctx, parent, key); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := sn.View(ctx, "view", parent)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(root, "mnt")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mount.All(mounts, target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(target, 0); err != nil {
			t.Error(err)
		}
	})
	return target, nil
}

// unpackWithSnapshotter does what unpackImage does, for layers in memory.
func unpackWithSnapshotter(t testing.TB, streams [][]byte) (string, error) {
	t.Helper()
	return unpackImage(t, memoryLayers(streams))
}

// scratch returns a temporary directory whose path is valid in mount options. The path of t.TempDir
// contains the test's name, which may contain a comma.
func scratch(t testing.TB) string {
	dir, err := os.MkdirTemp("", "tree")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unpackQuickly does what unpackImage does, without containerd's snapshotter, which writes a
// database.
func unpackQuickly(t testing.TB, layers []layer) (string, error) {
	t.Helper()
	root := scratch(t)
	var lower []string // topmost first
	for i, layer := range layers {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var options []archive.ApplyOpt
		if i > 0 {
			options = append(options, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
				archive.WithParents(lower))
		}
		err := layer.read(func(r io.Reader) error {
			_, err := archive.Apply(context.Background(), dir, r, options...)
			return err
		})
		if err != nil {
			return "", err
		}
		lower = append([]string{dir}, lower...)
	}
	if len(lower) == 1 {
		return lower[0], nil
	}
	target := filepath.Join(root, "mnt")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", target, "overlay", 0, "index=off,lowerdir="+strings.Join(lower, ":")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
	return target, nil
}
