package names

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// maxRemovals bounds the attempts to remove a name while pushes of it are refused.
const maxRemovals = 5

// maxListed bounds the names that an error lists.
const maxListed = 10

// errReplaced means that a push has replaced the job that was to remove its name.
var errReplaced = errors.New("a push has replaced the removal")

// Remove removes a name. Its manifests, blobs and chunks stay until a collection finds that nothing
// needs them. A job does the work, and goes on if ctx ends. If the name is pushed before the job
// runs, it stays. If such a push is refused, Remove queues the job again. The error wraps
// report.ErrBusy if refused pushes have replaced the job maxRemovals times.
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

// removal returns the job that removes a name, and when the name was last pushed. The error wraps
// catalog.ErrNotFound if neither catalog nor registry has the name. Only the catalog has names with
// a digest: in the registry, such a name stands for a manifest, which may have other names.
func (s *Service) removal(ctx context.Context, ref wire.Ref) (j catalog.Job, pushed time.Time, err error) {
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return j, pushed, err
	}
	for _, image := range images {
		if image.Pushed.After(pushed) {
			pushed = image.Pushed
		}
	}
	if ref.Digest != "" && len(images) == 0 {
		return j, pushed, s.errNoName(ctx, ref)
	}
	_, err = s.registry.Repository(ref.Repository).Manifest(ctx, ref.Reference())
	switch {
	case errors.Is(err, registry.ErrNotFound) && len(images) == 0:
		return j, pushed, errorOf(ref.Name(), catalog.ErrNotFound)
	case err != nil && !errors.Is(err, registry.ErrNotFound):
		return j, pushed, err
	}
	j = change{Remove: true}.job(ref.Name())
	j.ByUser = true
	return j, pushed, nil
}

// errNoName returns the error about a name with a digest that the catalog does not have. It says
// which names the image with this digest has.
func (s *Service) errNoName(ctx context.Context, ref wire.Ref) error {
	names, err := s.catalog.NamesIn(ctx, ref.Repository, ref.Digest)
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return errorOf(ref.Name(), catalog.ErrNotFound)
	}
	slices.Sort(names)
	more, listed := "", names[:min(len(names), maxListed)]
	if len(names) > len(listed) {
		more = fmt.Sprintf(" and %d more", len(names)-len(listed))
	}
	return errorOf(ref.Name(), fmt.Errorf("%w: the image with this digest is named %s%s: remove each of its names",
		catalog.ErrNotFound, strings.Join(listed, ", "), more))
}

// remove removes a name. The error is catalog.ErrLost if the job was lost, or has a request: a push
// of the name may have replaced it.
func (s *Service) remove(ctx context.Context, ref wire.Ref, l catalog.Lease) error {
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
