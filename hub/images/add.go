package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/report"
	"lighter/wire"
)

// errHubEnds is the error of waiting clients when the hub ends.
var errHubEnds = fmt.Errorf("the hub is stopping; it ingests pushed images at its next start, "+
	"images that were being copied have to be added again (%w)", context.Canceled)

// request is what a client waits for.
type request struct {
	name   string
	images []catalog.Image // requested ones; none if the manifests are only stored
	copy   *pull.Copy      // that brings them, or nil; has to be left
}

// Add adds an image and returns the requested images when each is ready, failed or stored. Until
// then it reports progress to send. The work goes on if ctx ends or send fails. Errors are
// report.ErrBusy, report.ErrInvalid, pull.ErrSource and those of the stores.
func (s *Service) Add(
	ctx context.Context, add wire.Add, send func(wire.Progress) error,
) (images []catalog.Image, err error) {
	defer func() { err = report.Error(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errHubEnds) })()
	r, err := s.begin(ctx, add)
	if err != nil {
		return nil, err
	}
	sender := report.NewSender(send)
	if r.copy == nil {
		return s.Queue.Await(ctx, r.images, sender)
	}
	defer s.Copies.Leave(r.copy)
	images, err = s.Queue.Await(ctx, r.images, sender, &r.copy.Progress)
	if err != nil || slices.ContainsFunc(images, hasFailed) {
		return images, err
	}
	if err := sender.Await(ctx, r.copy.Done(), &r.copy.Progress); err != nil {
		return nil, err
	}
	if err := r.copy.Err(); err != nil {
		return nil, err
	}
	if len(r.images) == 0 {
		return s.catalog.Images(ctx, r.name)
	}
	return s.Queue.Reload(ctx, r.images)
}

func hasFailed(i catalog.Image) bool { return i.State == wire.StateFailed }

// begin queues the images that add requests.
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
	source, imageName, err := pull.ParseSource(add.Source)
	if err != nil {
		return nil, err
	}
	if add.Name != "" {
		imageName = add.Name
	}
	ref, err := report.ParseName(imageName)
	if err != nil {
		return nil, err
	}
	from, err := pull.OpenSource(ctx, s.config.Sources, source, add)
	if err != nil {
		return nil, err
	}
	members, err := from.Expand(ctx, platforms)
	if err != nil {
		return nil, err
	}
	if ref.Digest != "" && ref.Digest != members.Root.Digest {
		return nil, fmt.Errorf("%w: the name %s has another digest than %s", report.ErrInvalid, imageName, add.Source)
	}
	return s.beginCopy(ctx, ref, from, members)
}

// beginOwn queues an image that the hub's registry has, and gives it the name first if add has a
// digest.
func (s *Service) beginOwn(ctx context.Context, add wire.Add, platforms []string) (*request, error) {
	ref, err := report.ParseName(add.Name)
	if err != nil {
		return nil, err
	}
	which := ref.Reference()
	if add.Digest != "" {
		if _, err := digest.Parse(add.Digest); err != nil || ref.Digest != "" && ref.Digest != add.Digest {
			return nil, fmt.Errorf("%w: digest %q of %s", report.ErrInvalid, add.Digest, add.Name)
		}
		which = add.Digest
	}
	defer s.Lock(ref.Repository)()
	repository := s.registry.Repository(ref.Repository)
	root, err := repository.Manifest(ctx, which)
	if err != nil {
		return nil, err
	}
	members, err := oci.Expand(ctx, repository, root, platforms)
	if err != nil {
		return nil, err
	}
	if err := members.CheckPlatforms(); err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	ctx = context.WithoutCancel(ctx) // the following is done as a whole
	if add.Digest != "" && ref.Tag != "" {
		if err := repository.PutManifest(ctx, ref.Tag, root); err != nil {
			return nil, err
		}
	}
	now, err := s.nameImages(ctx, ref, imagesOf(members))
	if err != nil {
		return nil, err
	}
	return &request{name: ref.Name(), images: requested(members, now)}, nil
}

// beginCopy queues the wanted images of a source and the copy that brings them, unless they are
// ready.
func (s *Service) beginCopy(
	ctx context.Context, ref wire.Ref, from *pull.Source, members *oci.Members,
) (*request, error) {
	if err := members.CheckPlatforms(); err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	c, err := s.Copies.Prepare(ref, from, members)
	if err != nil {
		return nil, err
	}
	defer s.Lock(ref.Repository)()
	r := &request{name: ref.Name()}
	have, err := s.catalog.Images(ctx, r.name)
	if err != nil {
		return nil, err
	}
	r.images = ready(members, have)
	if len(r.images) == 0 {
		// The copy is known before its images, as their turn may come at once.
		if r.copy, err = s.Copies.Join(c); err != nil {
			return nil, err
		}
	}
	// The last request decides what the name stands for, unless it was refused.
	s.Copies.Supersede(r.name, members.Root.Digest, errSuperseded)
	if len(r.images) > 0 {
		return r, s.catalog.AddSource(context.WithoutCancel(ctx), r.images, from.Repository())
	}
	wanted := slices.DeleteFunc(imagesOf(members), func(i catalog.Image) bool { return i.State != wire.StateQueued })
	r.images, err = s.catalog.Expect(context.WithoutCancel(ctx), r.name, wanted)
	if err == nil {
		err = s.catalog.AddSource(context.WithoutCancel(ctx), r.images, from.Repository())
	}
	if err != nil {
		s.Copies.Leave(r.copy)
		return nil, err
	}
	s.Queue.Wake()
	return r, nil
}

// imagesOf returns the images that the catalog is to have for a name. If there are none, the root
// stands for itself, so that it is listed and can be removed.
func imagesOf(members *oci.Members) []catalog.Image {
	root := members.Root.Digest
	images := make([]catalog.Image, 0, len(members.Manifests))
	for _, m := range members.Manifests {
		state := wire.StateStored
		if m.Wanted {
			state = wire.StateQueued
		}
		images = append(images, catalog.Image{Root: root, Digest: m.Digest, Platform: m.Platform, State: state})
	}
	if len(images) == 0 {
		images = append(images, catalog.Image{Root: root, Digest: root, State: wire.StateStored})
	}
	return images
}

// requested returns the wanted ones of the images of imagesOf, or all if none is wanted.
func requested(members *oci.Members, images []catalog.Image) []catalog.Image {
	if !members.HasWanted() {
		return images
	}
	var wanted []catalog.Image
	for i, m := range members.Manifests {
		if m.Wanted {
			wanted = append(wanted, images[i])
		}
	}
	return wanted
}

// ready returns the images of the wanted members if all of them are ready under the same root,
// otherwise none.
func ready(members *oci.Members, have []catalog.Image) []catalog.Image {
	var ready []catalog.Image
	for _, m := range members.Manifests {
		if !m.Wanted {
			continue
		}
		i := slices.IndexFunc(have, func(image catalog.Image) bool {
			return image.Digest == m.Digest && image.Root == members.Root.Digest && image.State == wire.StateReady
		})
		if i < 0 {
			return nil
		}
		ready = append(ready, have[i])
	}
	return ready
}

var (
	// errSuperseded ends copies to a name that was given to another image.
	errSuperseded = errors.New("the name was given to another image before this one was copied")
	// errRemoved ends copies to a name that was removed.
	errRemoved = errors.New("the name was removed")
)

func errorOf(name string, err error) error { return fmt.Errorf("image %s: %w", name, err) }
