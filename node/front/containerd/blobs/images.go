package blobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
)

// NoteLazy makes the links for an image that is being pulled, whose layers containerd does not
// download. So the layers are there for the first command after the pull. If that takes too long,
// the event of the pull's end makes the links. The context is that of a request of containerd.
func (b *Blobs) NoteLazy(ctx context.Context, manifest string) {
	namespace, _ := namespaces.Namespace(ctx)
	if !b.isOn() || !b.shown || !slices.Contains(b.config.Namespaces, namespace) {
		return
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), pullTimeout)
	defer cancel()
	if err := b.linkPulled(ctx, manifest); err != nil {
		b.config.Log.Info("a pull did not wait for the links of its layers", "manifest", manifest,
			"namespace", namespace, "err", err)
	}
}

// linkPulled makes the links for the image with a manifest.
func (b *Blobs) linkPulled(ctx context.Context, manifest string) error {
	if err := b.awaitSession(ctx); err != nil {
		return fmt.Errorf("wait for a connection to containerd: %w", err)
	}
	in, err := b.where()
	if err != nil {
		return err
	}
	s := newStore(b.conn)
	info, err := s.content.Info(ctx, digest.Digest(manifest))
	if err != nil {
		return err
	}
	_, err = b.linkTarget(ctx, s, in, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest,
		Digest: info.Digest, Size: info.Size})
	return err
}

// scan makes the links for all images. An image that was made on another one may need the links of
// that one, so the images that lack layers are looked at twice.
func (b *Blobs) scan(ctx context.Context, s store, in contents) error {
	unknown := 0
	for _, namespace := range b.config.Namespaces {
		ctx := namespaces.WithNamespace(ctx, namespace)
		answer, err := s.images.List(ctx, &imagesapi.ListImagesRequest{})
		if err != nil {
			return fmt.Errorf("list the images of containerd's namespace %s: %w", namespace, err)
		}
		var lacking []*imagesapi.Image
		for _, image := range answer.Images {
			if n, err := b.linkTarget(ctx, s, in, targetOf(image)); n > 0 || err != nil {
				lacking = append(lacking, image)
			}
		}
		for _, image := range lacking {
			n, err := b.linkTarget(ctx, s, in, targetOf(image))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			unknown += n
			if err != nil {
				b.config.Log.Warn("containerd cannot have all layers of an image", "image", image.Name,
					"namespace", namespace, "err", err)
			}
		}
	}
	b.count(func(s *Status) { s.Unknown = unknown })
	return nil
}

// targetOf returns the index or the manifest of an image.
func targetOf(image *imagesapi.Image) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: image.Target.MediaType, Digest: digest.Digest(image.Target.Digest),
		Size: image.Target.Size}
}

// linkTarget makes the links for an image. It returns how many layers containerd lacks that no hub
// has.
func (b *Blobs) linkTarget(ctx context.Context, s store, in contents, target ocispec.Descriptor) (
	unknown int, err error) {
	manifests, err := s.manifests(ctx, target, 0)
	for _, m := range manifests {
		n, linkErr := b.linkManifest(ctx, s, in, m)
		unknown += n
		err = errors.Join(err, linkErr)
	}
	return unknown, err
}

// manifest is a manifest in the content store.
type manifest struct {
	ocispec.Manifest
	digest string
	labels map[string]string
}

// manifests returns the manifests of an image that containerd has: it pulls only some of an index.
func (s store) manifests(ctx context.Context, desc ocispec.Descriptor, depth int) (all []manifest, err error) {
	isIndex := images.IsIndexType(desc.MediaType)
	if !isIndex && !images.IsManifestType(desc.MediaType) || depth > maxDepth {
		return nil, nil
	}
	info, err := s.content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	if isIndex {
		var index ocispec.Index
		if err := s.read(ctx, desc, &index); err != nil {
			return nil, err
		}
		for _, child := range index.Manifests {
			below, belowErr := s.manifests(ctx, child, depth+1)
			all, err = append(all, below...), errors.Join(err, belowErr)
		}
		return all, err
	}
	m := manifest{digest: desc.Digest.String(), labels: info.Labels}
	if err := s.read(ctx, desc, &m.Manifest); err != nil {
		return nil, err
	}
	return []manifest{m}, nil
}

// keeps reports whether the manifest keeps a layer that registries distribute: containerd's garbage
// collector removes all others.
func (m *manifest) keeps(layer ocispec.Descriptor) bool {
	if !images.IsLayerType(layer.MediaType) || images.IsNonDistributable(layer.MediaType) {
		return false
	}
	for key, value := range m.labels {
		if value == layer.Digest.String() && strings.HasPrefix(key, "containerd.io/gc.ref.content") {
			return true
		}
	}
	return false
}

// linkManifest makes a link and an entry for each layer of a manifest that containerd lacks. It
// returns how many of them no hub has.
func (b *Blobs) linkManifest(ctx context.Context, s store, in contents, m manifest) (unknown int, err error) {
	isKnown := sync.OnceValues(func() (bool, error) {
		_, err := b.config.Layers.Statements.Image(ctx, m.digest)
		if errors.Is(err, chunk.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	diffIDs := sync.OnceValue(func() []digest.Digest { return s.diffIDs(ctx, m) })
	for i, layer := range m.Layers {
		n := name{layer.Size, m.digest, layer.Digest.String()}
		if !m.keeps(layer) || !n.isValid() {
			continue
		}
		known, err := b.linkLayer(ctx, s, in, n, isKnown, func() map[string]string { return m.labelsOf(i, diffIDs()) })
		if err != nil {
			return unknown, fmt.Errorf("make a link and an entry for layer %s in containerd: %w", n.layer, err)
		}
		if !known {
			unknown++
		}
	}
	return unknown, nil
}

// diffIDs returns the diffIDs of an image's layers, or nil if they are not known.
func (s store) diffIDs(ctx context.Context, m manifest) []digest.Digest {
	var config ocispec.Image
	if err := s.read(ctx, m.Config, &config); err != nil || len(config.RootFS.DiffIDs) != len(m.Layers) {
		return nil
	}
	return config.RootFS.DiffIDs
}

// labelsOf returns the labels that containerd sets on a layer that it downloads: from where it is,
// and its diffID.
func (m *manifest) labelsOf(layer int, diffIDs []digest.Digest) map[string]string {
	set := map[string]string{}
	for key, value := range m.labels {
		if strings.HasPrefix(key, labels.LabelDistributionSource+".") {
			set[key] = value
		}
	}
	if diffIDs != nil {
		set[labels.LabelUncompressed] = diffIDs[layer].String()
	}
	return set
}
