package direct

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/format/guess"
	"lighter/store"
	"lighter/store/repository"
)

const (
	// maxManifest and maxConfig bound an image's manifest and config, in bytes.
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	// maxLayers bounds the layers of an image.
	maxLayers = 1000
	// tablesAtOnce is how many tables of an image are fetched at a time.
	tablesAtOnce = 4
)

// read is what was read of an image in its registry.
type read struct {
	digest      digest.Digest // of the manifest
	annotations map[string]string
	layers      []v1.Descriptor
	diffIDs     []digest.Digest // of the layers
	config      guess.Config
	lower       bool                            // layers are some of the lower ones
	stores      bool                            // chunks of layers that are read as a whole are stored in the cache
	check       func() error                    // whether the registry lets this node read the image
	listed      func() ([]v1.Descriptor, error) // what may be an attached index
	lookTime    time.Duration                   // bounds the looks at these
}

// pulledImage is readImage of an image that is being pulled in a namespace. It asks the registry
// only for what the pull has not fetched.
func (m *Images) pulledImage(
	ctx context.Context, namespace string, from *repository.Repository, which digest.Digest,
) (*read, error) {
	if namespace == "" || m.config.Pulled == nil {
		return readImage(ctx, from, which)
	}
	check := begin(func() error { return from.Check(ctx, which) }) // at once: it also opens a connection
	var im *read
	b, err := m.config.Pulled(ctx, namespace, which, maxManifest)
	if err != nil {
		im, err = readImage(ctx, from, which)
	} else {
		im, err = parseImage(which, b, func(d v1.Descriptor) ([]byte, error) {
			if b, err := m.config.Pulled(ctx, namespace, d.Digest, maxConfig); err == nil {
				return b, nil
			}
			return from.Blob(ctx, d, maxConfig)
		})
	}
	if err == nil {
		im.check = check
	}
	return im, err
}

// readImage reads an image's manifest and config from its registry.
func readImage(ctx context.Context, from *repository.Repository, which digest.Digest) (*read, error) {
	found, err := from.Manifest(ctx, which.String())
	if err != nil {
		return nil, err
	}
	return parseImage(which, found.Bytes, func(d v1.Descriptor) ([]byte, error) {
		return from.Blob(ctx, d, maxConfig)
	})
}

// parseImage returns the image of a manifest. fetch returns its config.
func parseImage(which digest.Digest, text []byte, fetch func(v1.Descriptor) ([]byte, error)) (*read, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, notDirect{fmt.Errorf("read manifest %s: %w", which, err)}
	}
	b, err := fetch(manifest.Config)
	if err != nil {
		return nil, err
	}
	var config v1.Image
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, notDirect{fmt.Errorf("read the config of manifest %s: %w", which, err)}
	}
	n := len(config.RootFS.DiffIDs)
	if n == 0 || n > maxLayers || n != len(manifest.Layers) {
		return nil, notDirect{fmt.Errorf("manifest %s has %d layers, and its config %d diffIDs: want 1 to %d of "+
			"each", which, len(manifest.Layers), n, maxLayers)}
	}
	for _, d := range config.RootFS.DiffIDs {
		if d.Validate() != nil {
			return nil, notDirect{fmt.Errorf("the config of manifest %s has an invalid diffID", which)}
		}
	}
	return &read{digest: which, annotations: manifest.Annotations, layers: manifest.Layers,
		diffIDs: config.RootFS.DiffIDs, config: guess.ConfigOf(config.Config),
		check: func() error { return nil }}, nil // the registry has just sent it
}

// checkRanges returns an error if ranges of the largest layer cannot be read: reads of the image
// would fail. Servers may decide by blob, by where they redirect to.
func checkRanges(ctx context.Context, from *repository.Repository, layers []v1.Descriptor) error {
	largest := slices.MaxFunc(layers, func(a, b v1.Descriptor) int { return cmp.Compare(a.Size, b.Size) })
	return from.Range(ctx, largest, largest.Size-1, 1, func(a store.Answer) error {
		_, err := io.Copy(io.Discard, a.Body)
		return err
	})
}

// eachLayer maps the layers of an image, a few at a time.
func eachLayer(
	ctx context.Context, layers []v1.Descriptor, fn func(context.Context, int, v1.Descriptor) (*mapped, error),
) ([]*mapped, error) {
	all := make([]*mapped, len(layers))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tablesAtOnce)
	for i, d := range layers {
		group.Go(func() (err error) {
			all[i], err = fn(ctx, i, d)
			return err
		})
	}
	return all, group.Wait()
}
