// Command image writes an image of Lighter as an OCI layout, from static binaries, without a build
// daemon:
//
//	image KIND DIR RELEASE SECONDS ARCH=BINARY...
//
// KIND is kubernetes (a container that installs the node on its machine, or is a hub) or talos (a
// system extension). The image of each architecture has one layer. SECONDS is the time of all
// files. The same binaries, the same time and the same version of Go give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "crypto/sha256" // of the digests
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 5 {
		return errors.New("usage: image kubernetes|talos DIR RELEASE SECONDS ARCH=BINARY [ARCH=BINARY]")
	}
	k, ok := kinds[args[0]]
	if !ok {
		return fmt.Errorf("the kind %s: want kubernetes or talos", args[0])
	}
	seconds, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return fmt.Errorf("the time %s: %w", args[3], err)
	}
	binaries := map[string]string{}
	var architectures []string
	for _, arg := range args[4:] {
		arch, path, ok := strings.Cut(arg, "=")
		if !ok || binaries[arch] != "" {
			return fmt.Errorf("%s: want ARCH=BINARY, each once", arg)
		}
		binaries[arch], architectures = path, append(architectures, arch)
	}
	l := layout{k, args[1], args[2], time.Unix(seconds, 0).UTC()}
	return l.write(architectures, binaries)
}

// layout is an OCI layout that is written.
type layout struct {
	kind         kind
	dir, release string
	created      time.Time
}

// write writes the layout, whose index has one image for each architecture.
func (l layout) write(architectures []string, binaries map[string]string) error {
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Annotations: l.annotations()}
	for _, arch := range architectures {
		image, err := l.image(arch, binaries[arch])
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		index.Manifests = append(index.Manifests, image)
	}
	all, err := l.document(v1.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{v1.AnnotationRefName: l.release}
	top := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{all}}
	for name, value := range map[string]any{v1.ImageIndexFile: top,
		v1.ImageLayoutFile: v1.ImageLayout{Version: v1.ImageLayoutVersion}} {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(l.dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (l layout) annotations() map[string]string {
	return map[string]string{
		v1.AnnotationTitle:       "lighter",
		v1.AnnotationVersion:     l.release,
		v1.AnnotationDescription: l.kind.description,
		v1.AnnotationLicenses:    "Apache-2.0",
		v1.AnnotationCreated:     l.created.Format(time.RFC3339),
	}
}

// image writes the image of one architecture, and returns its descriptor.
func (l layout) image(arch, binary string) (v1.Descriptor, error) {
	plain, packed, err := l.layer(binary)
	if err != nil {
		return v1.Descriptor{}, err
	}
	layer, err := l.blob(v1.MediaTypeImageLayerGzip, packed)
	if err != nil {
		return v1.Descriptor{}, err
	}
	settings := l.kind.config
	settings.Labels = l.annotations()
	config, err := l.document(v1.MediaTypeImageConfig, v1.Image{Created: &l.created,
		Platform: v1.Platform{Architecture: arch, OS: "linux"}, Config: settings,
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(plain)}},
		History: []v1.History{{Created: &l.created, CreatedBy: "lighter deploy/image"}}})
	if err != nil {
		return v1.Descriptor{}, err
	}
	manifest, err := l.document(v1.MediaTypeImageManifest, v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{layer},
		Annotations: l.annotations()})
	manifest.Platform = &v1.Platform{Architecture: arch, OS: "linux"}
	return manifest, err
}

// layer returns the layer, as it is and compressed.
func (l layout) layer(binary string) (plain, packed []byte, err error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, nil, err
	}
	var archive, compressed bytes.Buffer
	files, err := l.kind.files(program, l.release)
	if err != nil {
		return nil, nil, err
	}
	w := tar.NewWriter(&archive)
	for _, f := range files {
		f.ModTime, f.Format, f.Size = l.created, tar.FormatPAX, int64(len(f.text))
		if err := w.WriteHeader(&f.Header); err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	zip, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return nil, nil, err
	}
	_, err = zip.Write(archive.Bytes())
	err = errors.Join(err, zip.Close()) // only now compressed has everything
	return archive.Bytes(), compressed.Bytes(), err
}

// document writes a JSON document as a blob.
func (l layout) document(mediaType string, value any) (v1.Descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return l.blob(mediaType, text)
}

func (l layout) blob(mediaType string, content []byte) (v1.Descriptor, error) {
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	return d, os.WriteFile(filepath.Join(l.dir, "blobs/sha256", d.Digest.Encoded()), content, 0o644)
}
