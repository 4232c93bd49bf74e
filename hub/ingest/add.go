package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// ErrSource says that a source registry failed.
var ErrSource = errors.New("the source cannot be read")

// errEnds is what those hear who wait when the hub ends.
var errEnds = fmt.Errorf("the hub ends; what was pushed it takes in when it starts again, what was to be copied has to be added again (%w)", context.Canceled)

// request is what somebody waits for.
type request struct {
	name   string
	images []catalog.Image // that were asked for; none: there is nothing but to keep
	copy   *imageCopy      // that brings them, or nil; has to be left
}

// Add takes an image in and returns what came of it once it is ready, failed or
// stored: of the images that were asked for. Until then it reports progress to
// tell. The work on an image goes on when ctx ends or tell fails; only the
// waiting does not.
func (s *Service) Add(ctx context.Context, add wire.Add, tell func(wire.Progress) error) (images []catalog.Image, err error) {
	defer func() { err = report.Error(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errEnds) })()
	r, err := s.begin(ctx, add)
	if err != nil {
		return nil, err
	}
	var stories []*report.Progress
	if r.copy != nil {
		defer s.leave(r.copy)
		stories = append(stories, &r.copy.Progress)
	}
	t := report.NewSender(tell)
	if images, err = s.awaitAll(ctx, r.images, t, stories); err != nil || r.copy == nil || slices.ContainsFunc(images, hasFailed) {
		return images, err
	}
	if err := t.Await(ctx, r.copy.done, stories...); err != nil {
		return nil, err
	}
	if r.copy.err != nil {
		return nil, r.copy.err
	}
	if len(r.images) == 0 {
		return s.catalog.Images(ctx, r.name)
	}
	return s.stillThere(ctx, r.images)
}

// awaitAll waits until none of the images is queued or active, and returns them
// as they are then.
func (s *Service) awaitAll(ctx context.Context, images []catalog.Image, t *report.Sender, stories []*report.Progress) ([]catalog.Image, error) {
	for {
		now, err := s.stillThere(ctx, images)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(now, func(i catalog.Image) bool { return isWaiting(i.State) })
		if i < 0 {
			return now, nil
		}
		if err := s.await(ctx, now[i], t, stories); err != nil {
			return nil, err
		}
	}
}

// await waits until an image is neither queued nor active.
func (s *Service) await(ctx context.Context, image catalog.Image, t *report.Sender, stories []*report.Progress) error {
	job := s.job(image.N)
	// It may have ended before the job was there to be told.
	now, err := s.catalog.Numbered(ctx, []int64{image.N})
	if err != nil {
		return err
	}
	if len(now) == 0 || !isWaiting(now[0].State) {
		s.finish(image)
	}
	return t.Await(ctx, job.done, append(stories, &job.Progress)...)
}

// stillThere returns the images as they are now.
func (s *Service) stillThere(ctx context.Context, images []catalog.Image) ([]catalog.Image, error) {
	var numbers []int64
	for _, image := range images {
		numbers = append(numbers, image.N)
	}
	now, err := s.catalog.Numbered(ctx, numbers)
	if err == nil && len(now) < len(images) {
		err = errors.New("the image was taken away, or its name given to another one, before it was ready")
	}
	return now, err
}

func isWaiting(state string) bool { return state == wire.StateQueued || state == wire.StateActive }

func hasFailed(i catalog.Image) bool { return i.State == wire.StateFailed }

// begin queues what add asks for.
func (s *Service) begin(ctx context.Context, add wire.Add) (*request, error) {
	platforms := s.config.Platforms
	if add.Platform != "" {
		if !strings.Contains(add.Platform, "/") {
			return nil, fmt.Errorf("%w: platform %q: want OS/ARCH", report.ErrInvalid, add.Platform)
		}
		platforms = []string{add.Platform}
	}
	if add.Source == "" {
		return s.beginOwn(ctx, add, platforms)
	}
	source, imageName, err := parseSource(add.Source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if add.Name != "" {
		imageName = add.Name
	}
	ref, err := wire.ParseName(imageName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	root, e, err := s.readSource(ctx, source, add, platforms)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if ref.Digest != "" && ref.Digest != root.Digest {
		return nil, fmt.Errorf("%w: the name %s says another digest than %s has", report.ErrInvalid, imageName, add.Source)
	}
	return s.beginCopy(ctx, ref, root, e)
}

// readSource reads the manifests of a source.
func (s *Service) readSource(ctx context.Context, ref name.Reference, add wire.Add, platforms []string) (registry.Manifest, *expander, error) {
	from, err := openSource(ctx, s.config.Sources, ref, add)
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

// beginOwn queues an image that is in the hub's registry: what its name stands
// for, or is to stand for.
func (s *Service) beginOwn(ctx context.Context, add wire.Add, platforms []string) (*request, error) {
	ref, err := wire.ParseName(add.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	which := ref.Reference()
	if add.Digest != "" {
		if _, err := digest.Parse(add.Digest); err != nil || ref.Digest != "" && ref.Digest != add.Digest {
			return nil, fmt.Errorf("%w: digest %q of %s", report.ErrInvalid, add.Digest, add.Name)
		}
		which = add.Digest
	}
	defer s.Lock(ref.Repository)()
	root, err := s.registry.Manifest(ctx, ref.Repository, which)
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
	// What has begun is done even if whoever asked is gone.
	ctx = context.WithoutCancel(ctx)
	if add.Digest != "" && ref.Tag != "" {
		if err := s.registry.PutManifest(ctx, ref.Repository, ref.Tag, root); err != nil {
			return nil, err
		}
	}
	now, err := s.nameImages(ctx, ref, e.images(root))
	if err != nil {
		return nil, err
	}
	return &request{name: ref.Name(), images: e.asked(now)}, nil
}

// beginCopy queues the wanted images of a source, and the copy that brings them,
// unless they are ready.
func (s *Service) beginCopy(ctx context.Context, ref wire.Ref, root registry.Manifest, e *expander) (*request, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	c, err := s.newImageCopy(ref, root, e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	defer s.Lock(ref.Repository)()
	r := &request{name: ref.Name()}
	have, err := s.catalog.Images(ctx, r.name)
	if err != nil {
		return nil, err
	}
	// What was asked for last is what the name is to stand for.
	s.supersede(r.name, root.Digest, errSuperseded)
	if r.images = e.ready(have, root); len(r.images) > 0 {
		return r, s.catalog.AddSource(context.WithoutCancel(ctx), r.images, c.source.repository())
	}
	// The copy is known before its images are, as these may have their turn at once.
	if r.copy, err = s.join(c); err != nil {
		return nil, err
	}
	var wanted []catalog.Image
	for _, image := range e.images(root) {
		if image.State == wire.StateQueued {
			wanted = append(wanted, image)
		}
	}
	r.images, err = s.catalog.Expect(context.WithoutCancel(ctx), r.name, wanted)
	if err == nil {
		err = s.catalog.AddSource(context.WithoutCancel(ctx), r.images, c.source.repository())
	}
	if err != nil {
		s.leave(r.copy)
		return nil, err
	}
	s.wakeUp()
	return r, nil
}

// check refuses images of which none is for the wanted platforms. What is no
// image has no platform.
func (e *expander) check() error {
	if e.wants("") || len(e.indexes) == 0 && len(e.offered) == 0 {
		return nil
	}
	slices.Sort(e.offered)
	return fmt.Errorf("%w: no image for %s; there is one for %s", report.ErrInvalid,
		strings.Join(e.platforms, ", "), strings.Join(slices.Compact(e.offered), ", "))
}

// asked picks those of the images, which stand for the members, that are wanted,
// or all if there is none that could be.
func (e *expander) asked(images []catalog.Image) []catalog.Image {
	if !e.wants("") {
		return images
	}
	var asked []catalog.Image
	for i, m := range e.members {
		if m.wanted {
			asked = append(asked, images[i])
		}
	}
	return asked
}

// ready returns the images that stand for the wanted members, if each of these
// is ready under the same root; otherwise nothing.
func (e *expander) ready(have []catalog.Image, root registry.Manifest) []catalog.Image {
	var ready []catalog.Image
	for _, m := range e.members {
		if !m.wanted {
			continue
		}
		i := slices.IndexFunc(have, func(image catalog.Image) bool {
			return image.Digest == m.Digest && image.Root == root.Digest && image.State == wire.StateReady
		})
		if i < 0 {
			return nil
		}
		ready = append(ready, have[i])
	}
	return ready
}
