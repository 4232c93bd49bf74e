package names

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// maxRemovals bounds the attempts to remove a name while pushes of it are refused.
const maxRemovals = 5

// errReplaced means that a push has replaced the job that was to remove its name.
var errReplaced = errors.New("a push has replaced the removal")

// Remove removes a name, and its manifests that no other name needs. Chunks and blobs stay. A job
// does the work, and goes on if ctx ends. If the name is pushed before the job runs, it stays. If
// such a push is refused, Remove queues the job again. The error wraps report.ErrBusy if refused
// pushes have replaced the job maxRemovals times.
func (s *Service) Remove(ctx context.Context, name string) error {
	var first time.Time // when the name was last pushed, as the first attempt has found it
	for attempt := range maxRemovals {
		_, err := s.awaitRemoval(ctx, name, func(ref wire.Ref) (int64, []byte, error) {
			j, pushed, err := s.removal(ctx, ref)
			switch {
			case attempt == 0:
				first = pushed
			case errors.Is(err, catalog.ErrNotFound) || err == nil && !pushed.Equal(first):
				return 0, nil, nil // it was removed or pushed meanwhile
			}
			if err != nil {
				return 0, nil, err
			}
			n, err := s.catalog.Jobs.Add(ctx, j, 0)
			return n, j.Payload, err
		})
		if !errors.Is(err, errReplaced) {
			return err
		}
	}
	return fmt.Errorf("%w: %s is being pushed at this moment; try again", report.ErrBusy, name)
}

// RemoveIf is like Remove, but makes one attempt, and does nothing if still returns false, or if
// another change of the name is in progress. It reports whether the name was removed.
func (s *Service) RemoveIf(ctx context.Context, name string, still func() (bool, error)) (removed bool, err error) {
	removed, err = s.awaitRemoval(ctx, name, func(ref wire.Ref) (int64, []byte, error) {
		if is, err := still(); err != nil || !is {
			return 0, nil, err
		}
		j, _, err := s.removal(ctx, ref)
		if err != nil {
			return 0, nil, err
		}
		n, err := s.catalog.Jobs.AddNew(ctx, j)
		return n, j.Payload, err
	})
	if errors.Is(err, errReplaced) {
		err = nil
	}
	return removed, err
}

// awaitRemoval calls request, which queues a job that removes a name. It waits for the job, and
// reports whether the job has removed the name. request returns the job's number and payload, or 0
// if it has queued no job. It is called while the repository is locked. The error is errReplaced if
// the job was replaced before it has removed the name.
func (s *Service) awaitRemoval(
	ctx context.Context, name string, request func(wire.Ref) (n int64, payload []byte, err error),
) (removed bool, err error) {
	ref, err := report.ParseName(name)
	if err != nil {
		return false, err
	}
	unlock := s.Lock(ref.Repository)
	n, payload, err := request(ref)
	unlock()
	if err != nil || n == 0 {
		return false, err
	}
	s.jobs.Changed(jobKind, ref.Name())
	silent := report.NewSender(func(wire.Progress) error { return nil })
	j, err := s.jobs.AwaitEnd(ctx, jobKind, ref.Name(), n, silent)
	if errors.Is(err, catalog.ErrNotFound) || err == nil && !bytes.Equal(j.Payload, payload) {
		return false, errReplaced // in the first case the push has withdrawn the job
	}
	return err == nil, err
}

// removal returns the job that removes a name, and when the name was last pushed. The job lists
// what is to be deleted, so that it can start again after each interruption.
func (s *Service) removal(ctx context.Context, ref wire.Ref) (j catalog.Job, pushed time.Time, err error) {
	c := change{Remove: true}
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return j, pushed, err
	}
	for _, image := range images {
		c.Manifests = append(c.Manifests, image.Root, image.Digest)
		if image.Pushed.After(pushed) {
			pushed = image.Pushed
		}
	}
	from := s.registry.Repository(ref.Repository)
	root, err := from.Manifest(ctx, ref.Reference())
	switch {
	case errors.Is(err, registry.ErrNotFound) && len(images) == 0:
		return j, pushed, errorOf(ref.Name(), catalog.ErrNotFound)
	case err == nil:
		c.Manifests = append(c.Manifests, root.Digest)
		members, _ := oci.Expand(ctx, from, root, nil) // what can be read is removed
		for _, index := range members.Indexes {
			c.Indexes = append(c.Indexes, index.Digest)
		}
	case !errors.Is(err, registry.ErrNotFound):
		return j, pushed, err
	}
	isIndex := func(digest string) bool { return slices.Contains(c.Indexes, digest) }
	slices.Sort(c.Manifests)
	c.Manifests = slices.DeleteFunc(slices.Compact(c.Manifests), isIndex)
	j = c.job(ref.Name())
	j.ByUser = true
	return j, pushed, nil
}

// remove removes a name, and those of the manifests that no name needs. The error is
// catalog.ErrLost if the job was lost, or has a request: a push of the name may have replaced it.
func (s *Service) remove(ctx context.Context, ref wire.Ref, c change, l catalog.Lease) error {
	if err := s.removeName(ctx, ref, l); err != nil {
		return err
	}
	for _, digest := range c.Manifests {
		if err := s.deleteManifest(ctx, ref.Repository, digest, l.Job); err != nil {
			return err
		}
	}
	return s.deleteIndexes(ctx, ref.Repository, c.Indexes, l.Job)
}

func (s *Service) removeName(ctx context.Context, ref wire.Ref, l catalog.Lease) error {
	defer s.Lock(ref.Repository)()
	return s.deleting(ctx, registry.TagKey(ref.Repository, ref.Reference()), func(ctx context.Context) error {
		if err := s.catalog.Jobs.HoldUnchanged(ctx, l); err != nil {
			return err
		}
		// The registry comes first: if the process ends in between, the image is still listed.
		if ref.Tag != "" {
			if err := s.registry.Repository(ref.Repository).Delete(ctx, ref.Tag); err != nil {
				return err
			}
		}
		err := s.forget(ctx, l, ref.Name(), "")
		if errors.Is(err, catalog.ErrLost) { // only the registry has removed the name
			adding, end := catalog.Outlast(ctx)
			defer end()
			_, addErr := s.catalog.Jobs.Add(adding, change{}.job(ref.Name()), 0)
			err = errors.Join(err, addErr)
		}
		return err
	})
}

// deleteManifest deletes a manifest, unless a name in the repository needs it. If a name may be
// getting the manifest at this moment, the collection of the registry's blobs deletes it later.
func (s *Service) deleteManifest(ctx context.Context, repository, digest string, job int64) error {
	defer s.Lock(repository)()
	return s.deleting(ctx, digest, func(ctx context.Context) error {
		// Announcements are read before names: an announcement ends when the catalog has the name.
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

const (
	// maxReads bounds how often the indexes of a repository are read while new ones are pushed to
	// it.
	maxReads = 5
	// maxRoots bounds the roots that a removal reads, with all manifests below each. n removals
	// from a repository of n multi-platform images would read n² of them.
	maxRoots = 100
)

// deleteIndexes deletes those of the indexes that no name in the repository needs. The catalog has
// only roots and images, so the registry's other indexes are read, without the lock. If there are
// more than maxRoots, the collection of the registry's blobs deletes the indexes later.
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
		if len(roots) > maxRoots {
			return nil
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
	return fmt.Errorf("remove indexes of %s: new indexes are pushed too fast", repository)
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

// deleteUnneeded deletes indexes. If the repository has a root that is not in seen, it stops and
// returns false. If a name may be getting one of the indexes at this moment, the collection of the
// registry's blobs deletes the index later.
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
