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
	"lighter/hub/report"
	"lighter/wire"
)

// blobsAtOnce bounds the blobs of an image that are copied at once.
const blobsAtOnce = 4

type copyKey struct{ name, root, platforms string }

// imageCopy is what brings an image from a source to the hub's registry, while
// those of its layers that have arrived are split already. It goes on as long as
// an image of it, or somebody, waits for it. At its end it gives the name to the
// image, or fails those of its images that are queued; one whose turn has come
// sees it fail and ends by itself.
type imageCopy struct {
	report.Progress
	key     copyKey
	ref     wire.Ref // where it goes
	source  *source
	root    registry.Manifest
	members []member
	indexes []registry.Manifest
	blobs   []v1.Descriptor // of all members, each once

	ctx    context.Context // of the copying
	cancel context.CancelCauseFunc
	began  chan struct{} // closed when its turn has come

	uploads map[string]*registry.Upload // of the blobs, by digest
	done    chan struct{}               // closed when all is there, or err says why not
	err     error

	callers int // that wait for it; Service.mu guards it
}

var (
	errUnwanted   = errors.New("nobody waits for it any more")
	errSuperseded = errors.New("its name was given to another image, before it was there")
)

// newImageCopy prepares a copy. It refuses blobs beyond the limits by what their
// descriptors say; no more than that is ever read of them.
func (s *Service) newImageCopy(ref wire.Ref, root registry.Manifest, e *expander) (*imageCopy, error) {
	c := &imageCopy{key: copyKey{ref.Name(), root.Digest, strings.Join(e.platforms, ",")}, ref: ref, source: e.from.(*source), root: root,
		members: e.members, indexes: e.indexes,
		began: make(chan struct{}), uploads: map[string]*registry.Upload{}, done: make(chan struct{})}
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
			if d.Size < 0 || d.Size > s.config.Limits.Bytes {
				return nil, fmt.Errorf("manifest %s: blob %s has %d bytes, the limit is %d", m.Digest, d.Digest, d.Size, s.config.Limits.Bytes)
			}
			c.blobs = append(c.blobs, d)
			c.uploads[d.Digest.String()] = s.registry.NewUpload(ref.Repository, d.Digest.String(), d.Size)
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(s.life)
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

// ended tells whether the copy is over, well or not, or there never was one.
func (c *imageCopy) ended() bool { return c == nil || isClosed(c.done) }

// begun tells whether the copy has had its turn.
func (c *imageCopy) begun() bool { return c == nil || isClosed(c.began) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
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
		return context.Cause(ctx)
	}
}

// copyOf returns the copy that is to bring an image, if there is one.
func (s *Service) copyOf(image catalog.Image) *imageCopy {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.copies {
		if _, brings := c.manifest(image.Digest); brings && key.name == image.Name {
			return c
		}
	}
	return nil
}

// join makes the caller one who waits for a copy: for c, which thereby begins,
// or for one under way that does the same. It has to leave.
func (s *Service) join(c *imageCopy) (*imageCopy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same := s.copies[c.key]; same != nil && !same.ended() && same.ctx.Err() == nil {
		same.callers++
		return same, nil
	}
	if len(s.copies) >= maxCopies {
		return nil, report.ErrBusy
	}
	select {
	case s.pending <- c:
	default:
		return nil, report.ErrBusy
	}
	c.callers++
	s.copies[c.key] = c
	return c, nil
}

// leave is for whoever has joined.
func (s *Service) leave(c *imageCopy) {
	s.mu.Lock()
	c.callers--
	s.mu.Unlock()
	s.endUnwanted(c)
}

// endUnwanted ends a copy if nobody waits for it.
func (s *Service) endUnwanted(c *imageCopy) {
	waiting, err := s.waitingFor(s.life, c)
	if err != nil || len(waiting) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.callers == 0 {
		c.cancel(errUnwanted)
	}
}

// waitingFor lists the images that a copy brings and that wait for their end.
func (s *Service) waitingFor(ctx context.Context, c *imageCopy) ([]catalog.Image, error) {
	images, err := s.catalog.Images(ctx, c.key.name)
	return slices.DeleteFunc(images, func(image catalog.Image) bool {
		_, brings := c.manifest(image.Digest)
		return !brings || !isWaiting(image.State)
	}), err
}

// supersede ends the copies to a name that are not of root, and says why. The
// repository is locked.
func (s *Service) supersede(name, root string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.copies {
		if key.name != name || key.root == root {
			continue
		}
		delete(s.copies, key)
		c.cancel(why)
		if s.taken != nil && s.taken.from == c {
			s.giveWay() // what brings the image now is another copy, or nothing
		}
	}
}

// coming lists the digests that copies bring to a name.
func (s *Service) coming(name string) (digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.copies {
		if key.name != name || c.ended() {
			continue
		}
		for _, m := range c.members {
			digests = append(digests, m.Digest)
		}
	}
	return digests
}

// runCopy copies an image.
func (s *Service) runCopy(c *imageCopy) {
	defer c.cancel(nil)
	err := s.slots.Acquire(c.ctx, 1)
	if err == nil {
		close(c.began)
		s.wakeUp()
		ctx, stop := context.WithTimeoutCause(c.ctx, s.ImageTime, &tooLongError{s.ImageTime})
		if err = s.copyImage(ctx, c); err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		stop()
		s.slots.Release(1)
	} else {
		err = context.Cause(c.ctx)
	}
	s.endCopy(c, err)
}

// endCopy is the one end of a copy. It stays known until those who wait for it
// have heard, so that an image whose turn comes meanwhile hears it too.
func (s *Service) endCopy(c *imageCopy, err error) {
	c.err = err
	close(c.done)
	for _, upload := range c.uploads {
		upload.End(err) // those whose turn never came
	}
	if err != nil {
		s.config.Log.Info("image was not copied", "image", c.key.name, "why", report.Reason(err))
	}
	defer s.Lock(c.ref.Repository)()
	if err != nil && s.life.Err() == nil {
		s.failQueued(c, err)
	}
	s.mu.Lock()
	if s.copies[c.key] == c {
		delete(s.copies, c.key)
	}
	s.mu.Unlock()
	if err == nil {
		s.arrived()
	}
}

// failQueued fails the images that a copy should have brought and that are still
// queued, unless something else has brought them or will. The repository is
// locked.
func (s *Service) failQueued(c *imageCopy, cause error) {
	var failed []catalog.Image
	why := report.Reason(fmt.Errorf("image %s: %w", c.key.name, cause))
	if s.persist("note that an image was not copied", func(ctx context.Context) error {
		waiting, err := s.waitingFor(ctx, c)
		if err != nil {
			return err
		}
		failed = slices.DeleteFunc(waiting, func(i catalog.Image) bool {
			now := s.copyOf(i)
			return i.State != wire.StateQueued || now != nil && now != c || cause == errSuperseded && s.has(ctx, c.ref, i)
		})
		return s.catalog.FailQueued(ctx, failed, why)
	}) != nil {
		return
	}
	for _, image := range failed {
		s.finish(image)
	}
}

// has tells whether the registry has an image.
func (s *Service) has(ctx context.Context, ref wire.Ref, image catalog.Image) bool {
	_, err := s.registry.Manifest(ctx, ref.Repository, image.Digest)
	return err == nil
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

// copyBlob copies a blob, unless the registry has it already.
func (s *Service) copyBlob(ctx context.Context, c *imageCopy, d v1.Descriptor, upload *registry.Upload) error {
	digest := d.Digest.String()
	if there, err := s.registry.LinkBlob(ctx, c.ref.Repository, digest); there || err != nil {
		return err
	}
	from := &blobReader{source: c.source, ctx: ctx, digest: digest, read: c.Step("copy", wire.ShortDigest(digest), d.Size).Add, window: stallWindow, pause: retryPause}
	defer from.Close()
	return upload.Put(ctx, from)
}

// nameCopy gives the name to an image whose blobs are all there.
func (s *Service) nameCopy(ctx context.Context, c *imageCopy) error {
	defer s.Lock(c.ref.Repository)()
	if ctx.Err() != nil { // taken away, or its name given to another one
		return context.Cause(ctx)
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
	// Those that are wanted were queued, and may have come to their end already.
	e, err := expand(ctx, own{s.registry, c.ref.Repository}, c.root, nil)
	if err != nil {
		return err
	}
	_, err = s.nameImages(ctx, c.ref, e.images(c.root))
	return err
}
