package images

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

var repositorySeed = maphash.MakeSeed()

// Lock locks the names of a repository in the registry and in the catalog, until unlock is called.
// While a caller holds the lock it does not wait for the network and takes no second one.
func (s *Service) Lock(repository string) (unlock func()) {
	l := &s.repositories[maphash.String(repositorySeed, repository)%uint64(len(s.repositories))]
	l.Lock()
	return sync.OnceFunc(l.Unlock)
}

// Pushed notes that a tag of the hub's registry points to a manifest. The repository is locked.
func (s *Service) Pushed(ctx context.Context, repository, tag string) error {
	ref := wire.Ref{Repository: repository, Tag: tag}
	err := s.readName(ctx, ref)
	if err != nil {
		s.markStale(ref)
	}
	return err
}

// readName copies what a name stands for from the registry to the catalog. The repository is
// locked.
func (s *Service) readName(ctx context.Context, ref wire.Ref) error {
	repository := s.registry.Repository(ref.Repository)
	root, err := repository.Manifest(ctx, ref.Reference())
	if err != nil {
		return err
	}
	members, err := oci.Expand(ctx, repository, root, s.config.Platforms)
	images := imagesOf(members)
	if err != nil { // the registry serves the manifest; the catalog has the reason why it fails here
		images = []catalog.Image{{Root: root.Digest, Digest: root.Digest, State: wire.StateFailed,
			Error: report.Reason(errorOf(ref.Name(), err))}}
	}
	_, err = s.nameImages(ctx, ref, images)
	return err
}

// nameImages makes a name stand for these images in the catalog and returns them as they are now.
// The registry has them already. The repository is locked.
func (s *Service) nameImages(ctx context.Context, ref wire.Ref, images []catalog.Image) ([]catalog.Image, error) {
	now, err := s.catalog.Name(ctx, ref.Name(), images, pushJob(ref.Name(), images[0].Root))
	if err != nil {
		s.markStale(ref)
		return nil, err
	}
	s.jobs.Changed(jobKind, ref.Name())
	return now, nil
}

// markStale notes that a name may differ between registry and catalog.
func (s *Service) markStale(ref wire.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale[ref.Name()] = true
}

// readStale reads the stale names again.
func (s *Service) readStale(ctx context.Context) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.stale))
	clear(s.stale)
	s.mu.Unlock()
	for _, name := range names {
		ref, err := wire.ParseName(name)
		if err == nil {
			err = s.readStaleName(ctx, ref)
		}
		if err != nil && !errors.Is(err, registry.ErrNotFound) {
			s.config.Log.Error("read a name from the registry", "image", name, "err", err)
			s.markStale(ref)
		}
	}
}

// readStaleName reads a name from the registry, unless a job is going to give the name to its image.
func (s *Service) readStaleName(ctx context.Context, ref wire.Ref) error {
	defer s.Lock(ref.Repository)()
	j, err := s.catalog.Jobs.Open(ctx, jobKind, ref.Name())
	if err == nil {
		var w work
		if err := json.Unmarshal(j.Payload, &w); err == nil && w.Source != "" {
			return nil
		}
	} else if !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	return s.readName(ctx, ref)
}

// compareNames marks the names as stale that differ between registry and catalog, as the previous
// process was killed between the two.
func (s *Service) compareNames(ctx context.Context) error {
	images, err := s.catalog.Images(ctx, "")
	if err != nil {
		return err
	}
	for _, image := range images {
		ref, err := wire.ParseName(image.Name)
		if err != nil || ref.Tag == "" || isPending(image) { // a job brings a pending image
			continue
		}
		root, err := s.registry.Repository(ref.Repository).Manifest(ctx, ref.Tag)
		if err == nil && root.Digest != image.Root {
			s.markStale(ref)
		}
	}
	return nil
}

// Deleted notes that a tag was deleted from the hub's registry, or a manifest with all its tags.
// The repository is locked.
func (s *Service) Deleted(ctx context.Context, repository, reference string) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if !strings.Contains(reference, ":") { // tags have no colon, digests have one
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

// forget removes a name from the catalog or, if digest is not empty, its images with that digest.
func (s *Service) forget(ctx context.Context, name, digest string) error {
	defer s.jobs.Changed(jobKind, name)
	return s.catalog.Remove(ctx, jobKind, name, digest)
}

// Remove removes a name, and its manifests that no other name needs. Chunks and blobs stay.
func (s *Service) Remove(ctx context.Context, name string) error {
	_, err := s.RemoveIf(ctx, name, func() (bool, error) { return true, nil })
	return err
}

// RemoveIf is Remove if still returns true. It is called while the repository is locked: no push to
// this process changes the name meanwhile.
func (s *Service) RemoveIf(ctx context.Context, name string, still func() (bool, error)) (removed bool, err error) {
	ref, err := report.ParseName(name)
	if err != nil {
		return false, err
	}
	defer s.Lock(ref.Repository)()
	if is, err := still(); err != nil || !is {
		return false, err
	}
	err = s.remove(ctx, ref)
	return err == nil, err
}

// remove removes a name. Its repository is locked.
func (s *Service) remove(ctx context.Context, ref wire.Ref) error {
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return err
	}
	var digests []string
	for _, image := range images {
		digests = append(digests, image.Root, image.Digest)
	}
	var indexes map[string]bool
	root, err := s.registry.Repository(ref.Repository).Manifest(ctx, ref.Reference())
	switch {
	case err == nil:
		digests = append(digests, root.Digest)
		if indexes, err = s.unsharedIndexes(ctx, ref, root); err != nil {
			return err
		}
	case !errors.Is(err, registry.ErrNotFound):
		return err
	case len(images) == 0:
		return errorOf(ref.Name(), catalog.ErrNotFound)
	}
	// The registry comes first: if this is interrupted, the image is still listed and can be
	// removed again.
	if ref.Tag != "" {
		if err := s.registry.Repository(ref.Repository).Delete(ctx, ref.Tag); err != nil {
			return err
		}
	}
	digests = slices.AppendSeq(digests, maps.Keys(indexes))
	slices.Sort(digests)
	for _, digest := range slices.Compact(digests) {
		if unshared, isIndex := indexes[digest]; isIndex && !unshared {
			continue
		}
		if err := s.deleteManifest(ctx, ref, digest); err != nil {
			return err
		}
	}
	return s.forget(ctx, ref.Name(), "")
}

// deleteManifest deletes a manifest of ref, unless another name in the repository needs it.
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
	return s.registry.Repository(ref.Repository).Delete(ctx, digest)
}

// unsharedIndexes returns the indexes below root, and whether no other name in the repository needs
// each. The catalog has only roots and images, so the registry's indexes are read.
func (s *Service) unsharedIndexes(ctx context.Context, ref wire.Ref, root registry.Manifest) (map[string]bool, error) {
	from := s.registry.Repository(ref.Repository)
	members, _ := oci.Expand(ctx, from, root, nil) // if a part cannot be read, the others are removed
	unshared := map[string]bool{}
	for _, index := range members.Indexes {
		unshared[index.Digest] = true
	}
	if len(unshared) == 0 {
		return nil, nil
	}
	images, err := s.catalog.Images(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, image := range images {
		other, err := wire.ParseName(image.Name)
		if err != nil || other.Repository != ref.Repository || other == ref || seen[image.Root] {
			continue
		}
		seen[image.Root] = true
		m, err := from.Manifest(ctx, image.Root)
		if errors.Is(err, registry.ErrNotFound) {
			continue // it is still being copied
		}
		if err != nil {
			return nil, err
		}
		members, err := oci.Expand(ctx, from, m, nil)
		for digest := range unshared {
			// A name that cannot be read may need any index.
			isDigest := func(m registry.Manifest) bool { return m.Digest == digest }
			needed := err != nil || slices.ContainsFunc(members.Indexes, isDigest)
			unshared[digest] = unshared[digest] && !needed
		}
	}
	return unshared, nil
}
