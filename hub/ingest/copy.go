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

	uploads map[string]*registry.Upload // of the blobs, by digest
	done    chan struct{}               // closed when all is there, or err says why not
	err     error
}

func (s *Service) newImageCopy(ref wire.Ref, root registry.Manifest, e *expander) (*imageCopy, error) {
	c := &imageCopy{key: copyKey{ref.Name(), root.Digest, strings.Join(e.platforms, ",")}, ref: ref, source: e.from.(*source), root: root,
		members: e.members, indexes: e.indexes, images: e.images(root),
		uploads: map[string]*registry.Upload{}, done: make(chan struct{})}
	for _, m := range e.members {
		var manifest v1.Manifest
		if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
		}
		for _, d := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
			if d.Digest == "" || compressionOf(d.MediaType) == foreign || c.uploads[d.Digest.String()] != nil {
				continue
			}
			if err := d.Digest.Validate(); err != nil {
				return nil, fmt.Errorf("manifest %s: blob %q: %w", m.Digest, d.Digest, err)
			}
			c.blobs = append(c.blobs, d)
			c.uploads[d.Digest.String()] = s.registry.NewUpload(ref.Repository, d.Digest.String(), d.Size)
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

// ended tells whether the copy is over, well or not.
func (c *imageCopy) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
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

// endCopy tells those who wait for a copy how it went. The copy stays known until
// that is done, so that an image whose turn comes meanwhile hears it too.
func (s *Service) endCopy(ctx context.Context, c *imageCopy, err error) {
	c.err = err
	close(c.done)
	for _, upload := range c.uploads {
		upload.End(err) // those whose turn never came
	}
	if err != nil && ctx.Err() == nil {
		s.failWaiting(ctx, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copying[c.key] == c {
		delete(s.copying, c.key)
	}
}

// failWaiting fails the images that a copy should have brought.
func (s *Service) failWaiting(ctx context.Context, c *imageCopy) {
	waiting, err := s.waitingFor(ctx, c)
	if err != nil {
		s.config.Log.Error("note that a copy failed", "image", c.key.name, "error", err)
	}
	for _, image := range waiting {
		s.mu.Lock()
		taking := s.cancel[image.N] != nil
		s.mu.Unlock()
		if taking {
			continue // it fails by itself, and cleans up first
		}
		reason := fmt.Sprintf("image %s: %v", c.key.name, c.err)
		if err := s.catalog.End(ctx, image.N, wire.StateFailed, reason); err != nil {
			s.config.Log.Error("note that a copy failed", "image", c.key.name, "error", err)
		}
		s.finish(image.N)
	}
}

// waitingFor lists the images that a copy is to bring and that are not ready
// yet. They may be others than those for which it was begun: taken away, and
// asked for again.
func (s *Service) waitingFor(ctx context.Context, c *imageCopy) ([]catalog.Image, error) {
	images, err := s.catalog.Images(ctx, c.key.name)
	return slices.DeleteFunc(images, func(image catalog.Image) bool {
		_, brings := c.manifest(image.Digest)
		return !brings || image.Root != c.root.Digest || !isWaiting(image.State)
	}), err
}

func (s *Service) copyImage(ctx context.Context, c *imageCopy) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, d := range c.blobs {
		group.Go(func() error {
			upload := c.uploads[d.Digest.String()]
			err := s.copyBlob(groupCtx, c, d, upload)
			if groupCtx.Err() != nil {
				err = context.Cause(groupCtx) // another blob's fault
			}
			upload.End(err)
			return err
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
	waiting, err := s.waitingFor(ctx, c)
	if err != nil {
		return err
	}
	if len(waiting) == 0 && len(c.queued) > 0 {
		return errors.New("it was taken away")
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

// copyBlob copies a blob, unless the registry has it already.
func (s *Service) copyBlob(ctx context.Context, c *imageCopy, d v1.Descriptor, upload *registry.Upload) error {
	digest := d.Digest.String()
	if there, err := s.registry.LinkBlob(ctx, c.ref.Repository, digest); there || err != nil {
		return err
	}
	progress := c.item(s, digest, d.Size)
	from := &blobReader{source: c.source, ctx: ctx, digest: digest, read: progress.add}
	defer from.Close()
	return upload.Put(ctx, from)
}

// item tells the first image of the copy of a blob's progress.
func (c *imageCopy) item(s *Service, digest string, size int64) *item {
	if len(c.queued) == 0 {
		return &item{}
	}
	return s.job(c.queued[0].N).item("copy", shortDigest(digest), size)
}
