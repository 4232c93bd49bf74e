package ingest

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

var repositorySeed = maphash.MakeSeed()

// Lock keeps everybody else from changing what the names in a repository stand
// for, in the registry and in the catalog, until unlock is called. Nobody waits
// for the network with it, or takes a second one.
func (s *Service) Lock(repository string) (unlock func()) {
	l := &s.repositories[maphash.String(repositorySeed, repository)%uint64(len(s.repositories))]
	l.Lock()
	return sync.OnceFunc(l.Unlock)
}

// Pushed takes note that a tag of the hub's registry points to a manifest. The
// repository is locked.
func (s *Service) Pushed(ctx context.Context, repository, tag string) error {
	ref := wire.Ref{Repository: repository, Tag: tag}
	err := s.readName(ctx, ref)
	if err != nil {
		s.doubt(ref)
	}
	return err
}

// readName makes the catalog say of a name what the registry says. The
// repository is locked.
func (s *Service) readName(ctx context.Context, ref wire.Ref) error {
	root, err := s.registry.Manifest(ctx, ref.Repository, ref.Reference())
	if err != nil {
		return err
	}
	e, err := expand(ctx, own{s.registry, ref.Repository}, root, s.config.Platforms)
	images := e.images(root)
	if err != nil { // it is there and is served; what is wrong with it is said beside it
		images = []catalog.Image{{Root: root.Digest, Digest: root.Digest, State: wire.StateFailed,
			Error: report.Reason(fmt.Errorf("image %s: %w", ref.Name(), err))}}
	}
	_, err = s.nameImages(ctx, ref, images)
	return err
}

// nameImages makes the catalog say that a name stands for these images, which
// the registry has, and returns them as they are now. Copies of others to that
// name end. The repository is locked.
func (s *Service) nameImages(ctx context.Context, ref wire.Ref, images []catalog.Image) ([]catalog.Image, error) {
	s.supersede(ref.Name(), images[0].Root, errSuperseded)
	now, gone, err := s.catalog.Name(ctx, ref.Name(), images, s.coming(ref.Name()))
	if err != nil {
		s.doubt(ref)
		return nil, err
	}
	s.drop(gone)
	if slices.ContainsFunc(now, func(i catalog.Image) bool { return i.State == wire.StateQueued }) {
		s.arrived()
	}
	return now, nil
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

// doubt remembers that the registry may say something else of a name than the
// catalog.
func (s *Service) doubt(ref wire.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtful[ref.Name()] = true
}

// settleDoubts makes the catalog agree with the registry.
func (s *Service) settleDoubts(ctx context.Context) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.doubtful))
	clear(s.doubtful)
	s.mu.Unlock()
	for _, name := range names {
		ref, err := wire.ParseName(name)
		if err == nil {
			unlock := s.Lock(ref.Repository)
			err = s.readName(ctx, ref)
			unlock()
		}
		if err != nil && !errors.Is(err, registry.ErrNotFound) {
			s.config.Log.Error("take note of what a name stands for", "image", name, "cause", err)
			s.doubt(ref)
		}
	}
}

// compareNames has those names read again of which the registry says something
// else than the catalog, because the hub was killed in between.
func (s *Service) compareNames(ctx context.Context) error {
	images, err := s.catalog.Images(ctx, "")
	if err != nil {
		return err
	}
	for _, image := range images {
		ref, err := wire.ParseName(image.Name)
		if err != nil || ref.Tag == "" {
			continue
		}
		if root, err := s.registry.Manifest(ctx, ref.Repository, ref.Tag); err == nil && root.Digest != image.Root {
			s.doubt(ref)
		}
	}
	return nil
}

// Deleted takes note that a tag of the hub's registry is gone, or a manifest
// with all its tags. The repository is locked.
func (s *Service) Deleted(ctx context.Context, repository, reference string) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if !strings.Contains(reference, ":") { // no tag has a colon, every digest has
		return s.forget(ctx, ref.Name(), "")
	}
	names, err := s.catalog.NamesIn(ctx, repository, reference)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.forget(ctx, name, reference); err != nil {
			return err
		}
	}
	return nil
}

// forget takes a name away or, with a digest, what of it this stands for.
func (s *Service) forget(ctx context.Context, name, digest string) error {
	if digest == "" {
		s.supersede(name, "", errTakenAway)
	}
	gone, err := s.catalog.Remove(ctx, name, digest)
	if err != nil {
		return err
	}
	s.drop(gone)
	return nil
}

// Remove takes an image away: its name, and its manifests where no other name
// needs them. Its chunks and blobs stay.
func (s *Service) Remove(ctx context.Context, name string) error {
	ref, err := wire.ParseName(name)
	if err != nil {
		return fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	defer s.Lock(ref.Repository)()
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return err
	}
	var digests []string
	for _, image := range images {
		digests = append(digests, image.Root, image.Digest)
	}
	var indexes map[string]bool
	root, err := s.registry.Manifest(ctx, ref.Repository, ref.Reference())
	switch {
	case err == nil:
		digests = append(digests, root.Digest)
		if indexes, err = s.indexesAlone(ctx, ref, root); err != nil {
			return err
		}
	case !errors.Is(err, registry.ErrNotFound):
		return err
	case len(images) == 0:
		return fmt.Errorf("image %s: %w", ref.Name(), catalog.ErrNotFound)
	}
	// The registry first: what is left when this is interrupted can be seen, and
	// taken away once more.
	if ref.Tag != "" {
		if err := s.registry.Delete(ctx, ref.Repository, ref.Tag); err != nil {
			return err
		}
	}
	digests = slices.AppendSeq(digests, maps.Keys(indexes))
	slices.Sort(digests)
	for _, digest := range slices.Compact(digests) {
		if alone, index := indexes[digest]; index && !alone {
			continue
		}
		if err := s.deleteManifest(ctx, ref, digest); err != nil {
			return err
		}
	}
	return s.forget(ctx, ref.Name(), "")
}

// deleteManifest deletes a manifest of ref unless another name in the same
// repository needs it.
func (s *Service) deleteManifest(ctx context.Context, ref wire.Ref, digest string) error {
	names, err := s.catalog.NamesIn(ctx, ref.Repository, digest)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != ref.Name() {
			return nil
		}
	}
	return s.registry.Delete(ctx, ref.Repository, digest)
}
