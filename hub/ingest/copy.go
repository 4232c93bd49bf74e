package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	wire "lighter/store/hub"
)

// blobsAtOnce bounds the blobs of an image that are copied at once.
const blobsAtOnce = 4

type copyKey struct{ name, root, platforms string }

// imageCopy copies an image from a source to the hub's registry, while those of
// its layers that have arrived are split already.
type imageCopy struct {
	key     copyKey
	ref     wire.Ref // where it goes
	source  *source
	root    registry.Manifest
	members []member
	indexes []registry.Manifest
	images  []catalog.Image // what the name stands for when all is there
	queued  []catalog.Image // those of them that wait to be taken in
	blobs   []v1.Descriptor // of all members, each once

	arrived map[string]chan struct{} // by digest; closed when the blob is in the registry
	done    chan struct{}            // closed when all is there, or err says why not
	err     error
}

func newImageCopy(ref wire.Ref, root registry.Manifest, e *expander) (*imageCopy, error) {
	c := &imageCopy{key: copyKey{ref.Name(), root.Digest, strings.Join(e.platforms, ",")}, ref: ref, source: e.from.(*source), root: root,
		members: e.members, indexes: e.indexes, images: e.images(root),
		arrived: map[string]chan struct{}{}, done: make(chan struct{})}
	for _, m := range e.members {
		var manifest v1.Manifest
		if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
		}
		for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
			if d.Digest == "" || compressionOf(d.MediaType) == foreign || c.arrived[d.Digest.String()] != nil {
				continue
			}
			if err := d.Digest.Validate(); err != nil {
				return nil, fmt.Errorf("manifest %s: blob %q: %w", m.Digest, d.Digest, err)
			}
			c.blobs = append(c.blobs, d)
			c.arrived[d.Digest.String()] = make(chan struct{})
		}
	}
	return c, nil
}

// manifest returns a manifest of the copy.
func (c *imageCopy) manifest(digest string) (registry.Manifest, bool) {
	for _, m := range c.members {
		if m.Digest == digest {
			return m.Manifest, true
		}
	}
	return registry.Manifest{}, false
}

// copyOf returns the copy that is to bring an image, if there is one.
func (s *Service) copyOf(image catalog.Image) *imageCopy {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.copying {
		if _, has := c.manifest(image.Digest); has && key.name == image.Name {
			return c
		}
	}
	return nil
}

// await waits until a blob is in the registry.
func (c *imageCopy) await(ctx context.Context, digest string) error {
	arrived := c.arrived[digest]
	if arrived == nil {
		return fmt.Errorf("blob %s is not copied", digest)
	}
	select {
	case <-arrived:
		return nil
	case <-c.done:
		return c.err // nil only if it has arrived
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits until all of the image is in the registry.
func (c *imageCopy) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wanted lists the images that are to be taken in.
func (c *imageCopy) wanted() []catalog.Image {
	var wanted []catalog.Image
	for _, image := range c.images {
		if image.State == wire.StateQueued {
			wanted = append(wanted, image)
		}
	}
	return wanted
}

// runCopy copies an image.
func (s *Service) runCopy(ctx context.Context, c *imageCopy) {
	s.endCopy(ctx, c, s.copyImage(ctx, c))
}

// endCopy tells those who wait for a copy how it went.
func (s *Service) endCopy(ctx context.Context, c *imageCopy, err error) {
	c.err = err
	s.mu.Lock()
	delete(s.copying, c.key)
	s.mu.Unlock()
	close(c.done)
	if err == nil || ctx.Err() != nil {
		return
	}
	// An image whose turn has come fails by itself, the others here.
	for _, image := range c.queued {
		reason := fmt.Sprintf("image %s: %v", c.key.name, err)
		if err := s.catalog.End(ctx, image.N, wire.StateFailed, reason); err != nil {
			s.config.Log.Error("note that a copy failed", "image", c.key.name, "error", err)
		}
		s.finish(image.N)
	}
}

func (s *Service) copyImage(ctx context.Context, c *imageCopy) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, d := range c.blobs {
		group.Go(func() error {
			if err := s.copyBlob(groupCtx, c, d); err != nil {
				return err
			}
			close(c.arrived[d.Digest.String()])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.nameCopy(ctx, c)
}

// nameCopy gives the name to an image whose blobs are all there, unless it was
// taken away meanwhile.
func (s *Service) nameCopy(ctx context.Context, c *imageCopy) error {
	for _, image := range c.queued {
		if now, err := s.catalog.Numbered(ctx, []int64{image.N}); err != nil || len(now) == 0 {
			return errors.Join(errors.New("it was taken away"), err)
		}
	}
	var manifests []registry.Manifest
	for _, m := range c.members {
		manifests = append(manifests, m.Manifest)
	}
	for _, m := range slices.Backward(c.indexes) { // the inner ones first
		manifests = append(manifests, m)
	}
	for _, m := range manifests {
		if err := s.registry.PutManifest(ctx, c.ref.Repository, "", m); err != nil {
			return err
		}
	}
	if err := s.registry.PutManifest(ctx, c.ref.Repository, c.ref.Tag, c.root); err != nil {
		return err
	}
	var stored []catalog.Image
	for _, image := range c.images {
		if image.State == wire.StateStored {
			stored = append(stored, image)
		}
	}
	if _, err := s.catalog.SetImages(ctx, c.key.name, stored); err != nil {
		return err
	}
	return s.keep(ctx, c.key.name, c.images)
}

func (s *Service) copyBlob(ctx context.Context, c *imageCopy, d v1.Descriptor) error {
	digest := d.Digest.String()
	if there, err := s.registry.LinkBlob(ctx, c.ref.Repository, digest); there || err != nil {
		return err
	}
	progress := c.item(s, digest, d.Size)
	from := &blobReader{source: c.source, ctx: ctx, digest: digest, read: progress.add}
	defer from.Close()
	return s.registry.PutBlob(ctx, c.ref.Repository, digest, d.Size, from)
}

// item tells the first image of the copy of a blob's progress.
func (c *imageCopy) item(s *Service, digest string, size int64) *item {
	if len(c.queued) == 0 {
		return &item{}
	}
	return s.job(c.queued[0].N).item("copy", shortDigest(digest), size)
}
