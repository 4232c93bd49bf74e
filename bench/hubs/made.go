package hubs

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/layout"
)

// made is an OCI layout of generated layers.
type made struct {
	dir     string
	layers  []ocispec.Descriptor
	diffIDs []digest.Digest
}

// makeLayout makes the directory of a layout.
func makeLayout(dir string) (*made, error) {
	return &made{dir: dir}, os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755)
}

// add adds a layer.
func (m *made) add(write func(*layout.Layer) error) error {
	layer, diffID, err := layout.WriteLayer(m.dir, write)
	m.layers, m.diffIDs = append(m.layers, layer), append(m.diffIDs, diffID)
	return err
}

// keep removes all layers but the first n from the image.
func (m *made) keep(n int) { m.layers, m.diffIDs = m.layers[:n:n], m.diffIDs[:n:n] }

// write writes the image with its current layers.
func (m *made) write() error {
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: m.diffIDs}}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: m.layers}
	manifest.SchemaVersion = 2
	return layout.Write(m.dir, manifest, config)
}

// noise returns n bytes (n is even), different for each seed. They compress to about n/2 bytes.
func noise(seed uint64, n int) []byte {
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	half := make([]byte, n/2)
	_, _ = random.Read(half)
	return hex.AppendEncode(nil, half)
}

// seeds returns the numbers from first to last.
func seeds(first, last uint64) (all []uint64) {
	for ; first <= last; first++ {
		all = append(all, first)
	}
	return all
}

// files returns a function that writes a file of size bytes for each seed.
func files(size int, seeds ...uint64) func(*layout.Layer) error {
	return func(l *layout.Layer) error {
		for _, seed := range seeds {
			if err := l.File(fmt.Sprintf("file-%d", seed), noise(seed, size)); err != nil {
				return err
			}
		}
		return nil
	}
}
