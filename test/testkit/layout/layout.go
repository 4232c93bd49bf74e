// Package layout makes an OCI layout from another one by adding a layer. This takes milliseconds,
// because the new layout has hard links to the existing layers. The result is reproducible.
//
// The package reads only layouts with a single image, such as those of test/setup.
package layout

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layer writes the tar archive of a layer.
type Layer struct{ tar *tar.Writer }

// madeAt is the modification time of all entries: it is constant so that layers are reproducible.
var madeAt = time.Unix(1_700_000_000, 0)

// Dir adds a directory.
func (l *Layer) Dir(name string) error {
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: madeAt})
}

// File adds a file.
func (l *Layer) File(name string, content []byte) error { return l.file(name, 0o644, content) }

// Program adds an executable file.
func (l *Layer) Program(name string, content []byte) error { return l.file(name, 0o755, content) }

func (l *Layer) file(name string, mode int64, content []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: madeAt}
	if err := l.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := l.tar.Write(content)
	return err
}

// Extend makes an OCI layout in the directory to. Its image is the image of the OCI layout from,
// with one more layer. The function write adds the entries of that layer.
func Extend(from, to string, write func(*Layer) error) error {
	if err := os.MkdirAll(filepath.Join(to, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	manifest, err := Manifest(from)
	if err != nil {
		return err
	}
	config, err := Config(from)
	if err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		if err := os.Link(Blob(from, layer), Blob(to, layer)); err != nil {
			return err
		}
	}
	layer, diffID, err := WriteLayer(to, write)
	if err != nil {
		return fmt.Errorf("make a layer: %w", err)
	}
	manifest.Layers = append(manifest.Layers, layer)
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID)
	return Write(to, manifest, config)
}

// WriteLayer writes a layer, compressed with gzip, into the layout, and returns the layer's
// descriptor and diffID. The function write adds the entries.
func WriteLayer(layout string, write func(*Layer) error) (ocispec.Descriptor, digest.Digest, error) {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}
	temporary := filepath.Join(layout, "layer")
	f, err := os.Create(temporary)
	if err != nil {
		return d, "", err
	}
	defer f.Close()
	packed, plain := sha256.New(), sha256.New()
	z, err := gzip.NewWriterLevel(io.MultiWriter(f, packed), gzip.BestSpeed)
	if err != nil {
		return d, "", err
	}
	t := tar.NewWriter(io.MultiWriter(z, plain))
	if err := errors.Join(write(&Layer{t}), t.Close(), z.Close()); err != nil {
		return d, "", err
	}
	if d.Size, err = f.Seek(0, io.SeekEnd); err != nil {
		return d, "", err
	}
	d.Digest = digest.NewDigest(digest.SHA256, packed)
	return d, digest.NewDigest(digest.SHA256, plain), os.Rename(temporary, Blob(layout, d))
}

// Write writes the config, the manifest and the index of a layout with one image.
func Write(layout string, manifest ocispec.Manifest, config ocispec.Image) error {
	var err error
	if manifest.Config, err = writeBlob(layout, ocispec.MediaTypeImageConfig, config); err != nil {
		return err
	}
	top, err := writeBlob(layout, ocispec.MediaTypeImageManifest, manifest)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{ocispec.AnnotationRefName: "latest"}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{top}}
	return errors.Join(writeJSON(filepath.Join(layout, "index.json"), index),
		writeJSON(filepath.Join(layout, ocispec.ImageLayoutFile),
			ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}))
}

func writeBlob(layout, mediaType string, value any) (ocispec.Descriptor, error) {
	text, err := json.Marshal(value)
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	if err != nil {
		return d, err
	}
	return d, os.WriteFile(Blob(layout, d), text, 0o644)
}

// Manifest reads the manifest of an OCI layout.
func Manifest(layout string) (ocispec.Manifest, error) {
	var index ocispec.Index
	var manifest ocispec.Manifest
	if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
		return manifest, err
	}
	if len(index.Manifests) != 1 {
		return manifest, fmt.Errorf("read the manifest of %s: got %d images, want one", layout, len(index.Manifests))
	}
	return manifest, readJSON(Blob(layout, index.Manifests[0]), &manifest)
}

// Config reads the config of an OCI layout's image.
func Config(layout string) (config ocispec.Image, err error) {
	manifest, err := Manifest(layout)
	if err != nil {
		return config, err
	}
	return config, readJSON(Blob(layout, manifest.Config), &config)
}

// Blob returns the path of a blob of a layout.
func Blob(layout string, d ocispec.Descriptor) string {
	return filepath.Join(layout, "blobs", d.Digest.Algorithm().String(), d.Digest.Encoded())
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
