package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blob is a layer in an OCI layout.
type blob struct {
	layout string // name of the layout's directory
	path   string
	digest string
	size   int64
}

// findLayers returns the layers of all images in the layouts, each digest once, in their order.
func findLayers(layouts []string) ([]blob, error) {
	var blobs []blob
	seen := map[string]bool{}
	for _, dir := range layouts {
		found, err := layersOf(dir, filepath.Join(dir, "index.json"))
		if err != nil {
			return nil, fmt.Errorf("read OCI layout %s: %w", dir, err)
		}
		for _, b := range found {
			if !seen[b.digest] {
				seen[b.digest] = true
				blobs = append(blobs, b)
			}
		}
	}
	return blobs, nil
}

// layersOf returns the layers of the index or manifest in a file.
func layersOf(dir, path string) ([]blob, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var content struct {
		Manifests []ocispec.Descriptor
		Layers    []ocispec.Descriptor
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	var blobs []blob
	for _, d := range content.Layers {
		if !strings.Contains(d.MediaType, "tar") {
			continue // an attestation, for example
		}
		blobs = append(blobs, blob{
			layout: filepath.Base(dir), path: blobPath(dir, d), digest: d.Digest.String(), size: d.Size,
		})
	}
	for _, d := range content.Manifests {
		found, err := layersOf(dir, blobPath(dir, d))
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, found...)
	}
	return blobs, nil
}

func blobPath(dir string, d ocispec.Descriptor) string {
	return filepath.Join(dir, "blobs", d.Digest.Algorithm().String(), d.Digest.Encoded())
}
