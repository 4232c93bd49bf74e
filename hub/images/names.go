package images

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
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
	return s.readName(ctx, catalog.Lease{}, ref)
}

// readName copies what a name stands for from the registry to the catalog. The lease is that of the
// name's job, or none. The repository is locked.
func (s *Service) readName(ctx context.Context, l catalog.Lease, ref wire.Ref) error {
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
	_, err = s.nameImages(ctx, l, ref, images)
	return err
}

// nameImages makes a name stand for these images in the catalog and returns them as they are now.
// The registry has them already. The lease is that of the name's job, or none. The repository is
// locked.
func (s *Service) nameImages(
	ctx context.Context, l catalog.Lease, ref wire.Ref, images []catalog.Image,
) ([]catalog.Image, error) {
	now, err := s.catalog.NameBy(ctx, l, ref.Name(), images, pushJob(ref.Name(), images[0].Root))
	if err != nil {
		return nil, err
	}
	s.jobs.Changed(jobKind, ref.Name())
	return now, nil
}

// Deleted notes that a tag was deleted from the hub's registry, or a manifest with all its tags.
// The repository is locked.
func (s *Service) Deleted(ctx context.Context, repository, reference string) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if !strings.Contains(reference, ":") { // tags have no colon, digests have one
		return s.forget(ctx, catalog.Lease{}, ref.Name(), "")
	}
	names, err := s.catalog.NamesIn(ctx, repository, reference)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.forget(ctx, catalog.Lease{}, name, reference); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a name from the catalog or, if digest is not empty, its images with that digest.
// The lease is that of the name's job, or none.
func (s *Service) forget(ctx context.Context, l catalog.Lease, name, digest string) error {
	defer s.jobs.Changed(jobKind, name)
	return s.catalog.RemoveBy(ctx, l, jobKind, name, digest)
}

// removal returns the job that removes a name. It has what is to be deleted, so that it can do that
// as often as it is interrupted.
func (s *Service) removal(ctx context.Context, ref wire.Ref) (j catalog.Job, err error) {
	c := change{Remove: true}
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return j, err
	}
	for _, image := range images {
		c.Manifests = append(c.Manifests, image.Root, image.Digest)
	}
	from := s.registry.Repository(ref.Repository)
	root, err := from.Manifest(ctx, ref.Reference())
	switch {
	case errors.Is(err, registry.ErrNotFound) && len(images) == 0:
		return j, errorOf(ref.Name(), catalog.ErrNotFound)
	case err == nil:
		c.Manifests = append(c.Manifests, root.Digest)
		members, _ := oci.Expand(ctx, from, root, nil) // if a part cannot be read, the others are removed
		for _, index := range members.Indexes {
			c.Indexes = append(c.Indexes, index.Digest)
		}
	case !errors.Is(err, registry.ErrNotFound):
		return j, err
	}
	isIndex := func(digest string) bool { return slices.Contains(c.Indexes, digest) }
	slices.Sort(c.Manifests)
	c.Manifests = slices.DeleteFunc(slices.Compact(c.Manifests), isIndex)
	j = c.job(ref.Name())
	j.ByUser = true
	return j, nil
}

// remove removes a name, and those of the manifests that no name needs. It does nothing if the job
// is to do something else.
func (s *Service) remove(ctx context.Context, ref wire.Ref, c change, l catalog.Lease) error {
	removed, err := s.removeName(ctx, ref, l)
	if err != nil || !removed {
		return err
	}
	for _, digest := range c.Manifests {
		if err := s.deleteManifest(ctx, ref.Repository, digest, l.Job); err != nil {
			return err
		}
	}
	return s.deleteIndexes(ctx, ref.Repository, c.Indexes, l.Job)
}

func (s *Service) removeName(ctx context.Context, ref wire.Ref, l catalog.Lease) (removed bool, err error) {
	defer s.Lock(ref.Repository)()
	err = s.deleting(ctx, registry.TagKey(ref.Repository, ref.Reference()), func(ctx context.Context) error {
		// What is just being pushed is not to be removed.
		j, err := s.catalog.Jobs.Get(ctx, l.Job)
		if err != nil || j.Fence != l.Fence || j.Request != "" {
			return err
		}
		// The registry comes first: if this is interrupted, the image is still listed.
		if ref.Tag != "" {
			if err := s.registry.Repository(ref.Repository).Delete(ctx, ref.Tag); err != nil {
				return err
			}
		}
		err = s.forget(ctx, l, ref.Name(), "")
		if removed = err == nil; errors.Is(err, catalog.ErrLost) { // only the registry has forgotten it
			adding, end := catalog.Outlast(ctx)
			defer end()
			_, addErr := s.catalog.Jobs.Add(adding, change{}.job(ref.Name()), 0)
			err = errors.Join(err, addErr)
		}
		return err
	})
	return removed, err
}

// deleteManifest deletes a manifest, unless a name in the repository needs it. If one may get it at
// this moment, the collection of the registry's blobs deletes it later.
func (s *Service) deleteManifest(ctx context.Context, repository, digest string, job int64) error {
	defer s.Lock(repository)()
	return s.deleting(ctx, digest, func(ctx context.Context) error {
		// In this order: an announcement ends when the catalog has the name.
		announced, err := s.announced(ctx, repository, job)
		if err != nil || len(announced) > 0 {
			return err
		}
		names, err := s.catalog.NamesIn(ctx, repository, digest)
		if err != nil || len(names) > 0 {
			return err
		}
		return s.registry.Repository(repository).Delete(ctx, digest)
	})
}

// maxReads bounds how often the indexes of a repository are read while new ones are pushed to it.
const maxReads = 5

// deleteIndexes deletes those of the indexes that no name in the repository needs. The catalog has
// only roots and images, so the registry's other indexes are read, without the lock.
func (s *Service) deleteIndexes(ctx context.Context, repository string, indexes []string, job int64) error {
	unneeded, seen := slices.Clone(indexes), map[string]bool{}
	for range maxReads {
		if len(unneeded) == 0 {
			return nil
		}
		roots, err := s.catalog.Indexes(ctx, wire.Ref{Repository: repository}.NamedRepository())
		if err != nil {
			return err
		}
		for _, root := range roots {
			if seen[root] {
				continue
			}
			seen[root] = true
			if unneeded, err = s.withoutNeeded(ctx, repository, root, unneeded); err != nil {
				return err
			}
		}
		if done, err := s.deleteUnneeded(ctx, repository, unneeded, seen, job); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("remove indexes of %s: too many new ones are pushed", repository)
}

// withoutNeeded returns the indexes that a root does not need.
func (s *Service) withoutNeeded(ctx context.Context, repository, root string, indexes []string) ([]string, error) {
	from := s.registry.Repository(repository)
	m, err := from.Manifest(ctx, root)
	if errors.Is(err, registry.ErrNotFound) {
		return indexes, nil // it is still being copied
	}
	if err != nil {
		return nil, err
	}
	members, err := oci.Expand(ctx, from, m, nil)
	if err != nil { // a name that cannot be read may need any index
		return nil, nil
	}
	return slices.DeleteFunc(indexes, func(index string) bool {
		isIndex := func(m registry.Manifest) bool { return m.Digest == index }
		return index == root || slices.ContainsFunc(members.Indexes, isIndex)
	}), nil
}

// deleteUnneeded deletes indexes, unless there is a root that was not seen. If a name may get one
// of them at this moment, the collection of the registry's blobs deletes them later.
func (s *Service) deleteUnneeded(
	ctx context.Context, repository string, indexes []string, seen map[string]bool, job int64,
) (done bool, err error) {
	defer s.Lock(repository)()
	done = true
	for _, index := range indexes {
		err := s.deleting(ctx, index, func(ctx context.Context) error {
			announced, err := s.announced(ctx, repository, job)
			if err != nil || len(announced) > 0 {
				return err
			}
			roots, err := s.catalog.Indexes(ctx, wire.Ref{Repository: repository}.NamedRepository())
			if err != nil {
				return err
			}
			if slices.ContainsFunc(roots, func(root string) bool { return !seen[root] }) {
				done = false
				return nil
			}
			return s.registry.Repository(repository).Delete(ctx, index)
		})
		if err != nil || !done {
			return false, err
		}
	}
	return done, nil
}
