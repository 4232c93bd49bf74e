package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	wire "lighter/store/hub"
)

var (
	// ErrBusy says that too much waits already.
	ErrBusy = errors.New("the hub is busy: too many images wait")
	// ErrInvalid marks requests that no hub can fulfil.
	ErrInvalid = errors.New("invalid request")
	// ErrSource marks what a source did not give.
	ErrSource = errors.New("the source cannot be read")
)

// Pushed takes note that a tag of the hub's registry points to a manifest.
func (s *Service) Pushed(ctx context.Context, repository, tag string) error {
	ref := wire.Ref{Repository: repository, Tag: tag}
	root, err := s.registry.Manifest(ctx, repository, tag)
	if err != nil {
		return err
	}
	e, err := expand(ctx, own{s.registry, repository}, root, s.config.Platforms)
	if err != nil {
		// It was pushed and is served; what is wrong with it is said beside it.
		return s.noteFailed(ctx, ref.Name(), root, err)
	}
	_, err = s.setImages(ctx, ref.Name(), e.images(root))
	return err
}

func (s *Service) noteFailed(ctx context.Context, name string, root registry.Manifest, cause error) error {
	image := catalog.Image{Root: root.Digest, Digest: root.Digest, State: wire.StateFailed,
		Error: fmt.Sprintf("image %s: %v", name, cause)}
	_, err := s.setImages(ctx, name, []catalog.Image{image})
	return err
}

// images lists the members as the catalog is to know them. A name without any
// stands for its root, so that it can be seen and taken away.
func (e *expander) images(root registry.Manifest) []catalog.Image {
	images := make([]catalog.Image, 0, len(e.members))
	for _, m := range e.members {
		state := wire.StateStored
		if m.wanted {
			state = wire.StateQueued
		}
		images = append(images, catalog.Image{Root: root.Digest, Digest: m.Digest, Platform: m.platform, State: state})
	}
	if len(images) == 0 {
		images = append(images, catalog.Image{Root: root.Digest, Digest: root.Digest, State: wire.StateStored})
	}
	return images
}

// setImages says that a name stands for these images now, and no others.
func (s *Service) setImages(ctx context.Context, name string, images []catalog.Image) ([]catalog.Image, error) {
	now, err := s.catalog.SetImages(ctx, name, images)
	if err != nil {
		return nil, err
	}
	s.wakeUp()
	return now, s.keep(ctx, name, images)
}

// keep takes the name from all other images.
func (s *Service) keep(ctx context.Context, name string, images []catalog.Image) error {
	digests := make([]string, len(images))
	for i, image := range images {
		digests[i] = image.Digest
	}
	gone, err := s.catalog.Keep(ctx, name, digests)
	if err != nil {
		return err
	}
	s.drop(gone)
	return nil
}

// drop ends the work on images that are gone from the catalog.
func (s *Service) drop(numbers []int64) {
	for _, n := range numbers {
		s.mu.Lock()
		cancel := s.cancel[n]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		} else {
			s.finish(n)
		}
	}
}

// Add takes an image in and returns what came of it once it is ready, failed or
// stored. Until then it reports progress to tell. The work goes on when ctx
// ends or tell fails; only the waiting does not.
func (s *Service) Add(ctx context.Context, add wire.Add, tell func(wire.Progress) error) ([]catalog.Image, error) {
	images, copy, err := s.begin(ctx, add)
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, image := range images {
		numbers = append(numbers, image.N)
		if err := s.await(ctx, image, tell); err != nil {
			return nil, err
		}
	}
	if copy != nil && len(images) == 0 { // nothing to take in, but to keep
		if err := copy.wait(ctx); err != nil {
			return nil, err
		}
		return s.catalog.Images(ctx, copy.key.name)
	}
	images, err = s.catalog.Numbered(ctx, numbers)
	switch {
	case err != nil:
		return nil, err
	case len(images) < len(numbers):
		return images, errors.New("the image was taken away, or its name given to another one, before it was ready")
	case slices.ContainsFunc(images, func(i catalog.Image) bool { return isWaiting(i.State) }):
		return images, errors.New("the hub ends; it goes on with the image when it starts again")
	}
	return images, nil
}

// await waits until an image is neither queued nor active.
func (s *Service) await(ctx context.Context, image catalog.Image, tell func(wire.Progress) error) error {
	if !isWaiting(image.State) {
		return nil
	}
	job := s.job(image.N)
	// It may have ended before the job was there to be told.
	now, err := s.catalog.Numbered(ctx, []int64{image.N})
	if err != nil {
		return err
	}
	if len(now) == 0 || !isWaiting(now[0].State) {
		s.finish(image.N)
	}
	return job.await(ctx, tell)
}

func isWaiting(state string) bool { return state == wire.StateQueued || state == wire.StateActive }

// begin queues what add asks for. It returns the images that it is about, and
// the copy that brings them if there is one.
func (s *Service) begin(ctx context.Context, add wire.Add) ([]catalog.Image, *imageCopy, error) {
	platforms := s.config.Platforms
	if add.Platform != "" {
		if !strings.Contains(add.Platform, "/") {
			return nil, nil, fmt.Errorf("%w: platform %q: want OS/ARCH", ErrInvalid, add.Platform)
		}
		platforms = []string{add.Platform}
	}
	if add.Source == "" {
		images, err := s.beginOwn(ctx, add.Name, platforms)
		return images, nil, err
	}
	source, imageName, err := parseSource(add.Source)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if add.Name != "" {
		imageName = add.Name
	}
	ref, err := wire.ParseName(imageName)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	root, e, err := readSource(ctx, source, add, platforms)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if ref.Digest != "" && ref.Digest != root.Digest {
		return nil, nil, fmt.Errorf("%w: the name %s says another digest than %s has", ErrInvalid, imageName, add.Source)
	}
	return s.beginCopy(ctx, ref, root, e)
}

// readSource reads the manifests of a source.
func readSource(ctx context.Context, ref name.Reference, add wire.Add, platforms []string) (registry.Manifest, *expander, error) {
	from, err := openSource(ctx, ref, add)
	if err != nil {
		return registry.Manifest{}, nil, err
	}
	root, err := from.Manifest(ctx, ref.Identifier())
	if err != nil {
		return root, nil, err
	}
	e, err := expand(ctx, from, root, platforms)
	return root, e, err
}

// beginOwn queues an image that is in the hub's registry.
func (s *Service) beginOwn(ctx context.Context, name string, platforms []string) ([]catalog.Image, error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	root, err := s.registry.Manifest(ctx, ref.Repository, ref.Reference())
	if err != nil {
		return nil, err
	}
	e, err := expand(ctx, own{s.registry, ref.Repository}, root, platforms)
	if err != nil {
		return nil, err
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	return s.setImages(ctx, ref.Name(), e.images(root))
}

// beginCopy queues an image that a source has, and the copy that brings it.
func (s *Service) beginCopy(ctx context.Context, ref wire.Ref, root registry.Manifest, e *expander) ([]catalog.Image, *imageCopy, error) {
	if err := e.check(); err != nil {
		return nil, nil, err
	}
	have, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return nil, nil, err
	}
	if ready := e.ready(have, root); len(ready) > 0 {
		return ready, nil, nil
	}
	c, err := s.newImageCopy(ref, root, e)
	if err != nil {
		return nil, nil, err
	}
	return s.enqueue(ctx, c)
}

// enqueue makes a copy known before its images are, as these may have their
// turn at once.
func (s *Service) enqueue(ctx context.Context, c *imageCopy) ([]catalog.Image, *imageCopy, error) {
	s.mu.Lock()
	same := s.copying[c.key]
	if same == nil || same.ended() {
		same = nil
		s.copying[c.key] = c
	}
	s.mu.Unlock()
	var err error
	c.queued, err = s.catalog.SetImages(ctx, c.key.name, c.wanted())
	if same != nil { // somebody asked for it before: wait for that copy
		s.wakeUp()
		return c.queued, same, err
	}
	if err == nil {
		select {
		case s.copies <- c:
			s.wakeUp()
			return c.queued, c, nil
		default:
			err = ErrBusy
		}
	}
	s.endCopy(ctx, c, err)
	return nil, nil, err
}

// check refuses an index that has nothing for the wanted platforms.
func (e *expander) check() error {
	if len(e.indexes) == 0 || e.wants("") {
		return nil
	}
	slices.Sort(e.offered)
	return fmt.Errorf("%w: no image for %s in the index, which has %s", ErrInvalid,
		strings.Join(e.platforms, ", "), strings.Join(slices.Compact(e.offered), ", "))
}

// ready returns the images that stand for the wanted members, if each of these
// is ready under the same root; otherwise nothing.
func (e *expander) ready(have []catalog.Image, root registry.Manifest) []catalog.Image {
	var ready []catalog.Image
	for _, m := range e.members {
		i := slices.IndexFunc(have, func(image catalog.Image) bool {
			return image.Digest == m.Digest && image.Root == root.Digest
		})
		switch {
		case !m.wanted:
		case i < 0 || have[i].State != wire.StateReady:
			return nil
		default:
			ready = append(ready, have[i])
		}
	}
	return ready
}
