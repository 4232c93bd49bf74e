package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/converter/uncompress"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// lockStore locks a store until the returned file is closed, so that two processes do not write the
// same layer at the same time: images share layers.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// kept converts layers and keeps the converted layers in the store, because images share layers and
// the conversion of a layer takes minutes.
type kept struct {
	dir   string // of the store
	kind  string
	first map[digest.Digest][]string // files to put at the beginning of each layer
}

func (k kept) convert(ctx context.Context, store content.Store, layer ocispec.Descriptor) (*ocispec.Descriptor, error) {
	first := k.first[layer.Digest]
	record := filepath.Join(k.dir, "converted", k.key(layer, first))
	var converted *ocispec.Descriptor
	if err := readJSON(record, &converted); err != nil {
		return nil, err
	}
	if converted != nil {
		_, err := store.Info(ctx, converted.Digest)
		if !errdefs.IsNotFound(err) {
			return converted, err
		}
	}
	converted, err := convertLayer(ctx, store, k.kind, layer, first)
	if err != nil || converted == nil {
		return nil, err
	}
	if err := k.dropPlain(ctx, store, layer); err != nil {
		return nil, err
	}
	return converted, writeJSON(record, converted)
}

// key returns the name of a converted layer's record. It depends on the kind, the layer, the files
// to put at its beginning, and the version of the peer.
func (k kept) key(layer ocispec.Descriptor, first []string) string {
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/containerd/stargz-snapshotter" {
				version = dep.Version
			}
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %s %q", version, k.kind, layer.Digest, first)))
}

// dropPlain removes the decompressed layer that the peer's converter to zstd leaves in the store.
func (k kept) dropPlain(ctx context.Context, store content.Store, layer ocispec.Descriptor) error {
	if k.kind != zstdchunkedKind || uncompress.IsUncompressedType(layer.MediaType) {
		return nil
	}
	plain, err := images.GetDiffID(ctx, store, layer)
	if err != nil {
		return err
	}
	if err := store.Delete(ctx, plain); !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// labels is a directory with a file of labels for each blob of the store. The labels contain the
// digests of uncompressed layers, which take long to compute.
type labels string

func (l labels) path(blob digest.Digest) string { return filepath.Join(string(l), blob.Encoded()) }

func (l labels) Get(blob digest.Digest) (values map[string]string, err error) {
	err = readJSON(l.path(blob), &values)
	return values, err
}

func (l labels) Set(blob digest.Digest, values map[string]string) error {
	return writeJSON(l.path(blob), values)
}

func (l labels) Update(blob digest.Digest, changes map[string]string) (map[string]string, error) {
	values, err := l.Get(blob)
	if err != nil {
		return nil, err
	}
	if values == nil {
		values = map[string]string{}
	}
	for name, value := range changes {
		if values[name] = value; value == "" {
			delete(values, name)
		}
	}
	return values, l.Set(blob, values)
}

// readJSON decodes a file. If the file does not exist, it leaves into unchanged.
func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces the file atomically. It does not sync, so after a crash of the machine the
// file may be empty. Then readJSON fails until the file is removed.
func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), path)
}
