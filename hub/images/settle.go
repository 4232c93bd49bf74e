package images

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// What a name stands for is in the registry and in the catalog, and no transaction changes both. So
// a change is announced before: Changing queues a job for the name, to run after settleAfter. When
// both have the change, the job is withdrawn. If the process ends before that, or another process
// changes the same name at the same time, the job runs: it makes the catalog agree with the
// registry.
//
// The lock of a repository (Service.Lock) is one of a process. Between processes, an announcement
// excludes deletions. A deletion of a tag or manifest begins in the catalog (catalog.Blobs), for a
// lease. Then it looks for announced changes of the repository, and deletes nothing if there are
// any. A change is announced first. Then it touches its tag and manifests, which waits for the
// deletions that have begun.
const (
	// nameJob is the kind of these jobs. Their key is the name.
	nameJob     = "name"
	settleAfter = time.Minute
	namesAtOnce = 4
	settleTries = 3
	// deleteLease is how long a tag or manifest may be locked by its deletion. Half of it bounds
	// the deletion.
	deleteLease = 10 * time.Second
	deletePause = 50 * time.Millisecond
)

// change is the payload of a nameJob.
type change struct {
	Token  string `json:"token,omitempty"`  // of this change only
	Remove bool   `json:"remove,omitempty"` // the name is to be removed
	// Then, digests of the manifests and of the indexes that no other name may need.
	Manifests []string `json:"manifests,omitempty"`
	Indexes   []string `json:"indexes,omitempty"`
}

func (c change) job(name string) catalog.Job {
	payload, _ := json.Marshal(c) // never fails
	return catalog.Job{Kind: nameJob, Key: name, Payload: payload, Priority: urgent}
}

// Changing says that a tag of the hub's registry is about to get another manifest or to be deleted,
// or a manifest with all its tags. settled is called, without the lock, when the catalog has the
// change, too, or nothing has changed. It reports whether the change was announced until then.
func (s *Service) Changing(ctx context.Context, repository, reference string) (settled func() bool, err error) {
	if !strings.Contains(reference, ":") { // tags have no colon, digests have one
		a, err := s.announce(ctx, wire.Ref{Repository: repository, Tag: reference}.Name())
		if err != nil {
			return nil, err
		}
		return a.settled, nil
	}
	deletion, err := s.beginDeletion(ctx, reference)
	if err != nil {
		return nil, err
	}
	names, err := s.announced(ctx, repository, 0) // the manifest may just be getting another tag
	if err != nil {
		return nil, err
	}
	known, err := s.catalog.NamesIn(ctx, repository, reference)
	if err != nil {
		return nil, err
	}
	names = append(names, known...)
	slices.Sort(names)
	a, err := s.announce(ctx, slices.Compact(names)...)
	if err != nil {
		return nil, err
	}
	return func() bool {
		if err := s.endDeletion(ctx, deletion); err != nil {
			s.config.Log.Warn("a manifest is locked for some seconds", "digest", reference, "err", err)
		}
		return a.settled()
	}, nil
}

// announcement is a change of names that this process makes.
type announcement struct {
	*Service
	ctx   context.Context
	names []string
	token string
}

// announce queues the jobs of names that are about to change.
func (s *Service) announce(ctx context.Context, names ...string) (*announcement, error) {
	a := &announcement{Service: s, ctx: ctx, names: names, token: rand.Text()}
	for _, name := range names {
		j := change{Token: a.token}.job(name)
		j.Postpones = true
		if _, err := s.catalog.Jobs.Add(ctx, j, settleAfter); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// settled withdraws the jobs, without the lock. It reports whether they were open until then.
func (a *announcement) settled() bool {
	ctx, end := catalog.Outlast(a.ctx)
	defer end()
	all := true
	for _, name := range a.names {
		lasted, err := a.catalog.Jobs.Withdraw(ctx, change{Token: a.token}.job(name))
		if err != nil {
			a.config.Log.Warn("a name is compared once more", "image", name, "err", err) // by its job
		}
		a.jobs.Changed(nameJob, name)
		all = all && lasted
	}
	return all
}

// isLast reports whether no other change of the name was announced since.
func (a *announcement) isLast(ctx context.Context, name string) (bool, error) {
	j, err := a.catalog.Jobs.Open(ctx, nameJob, name)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	return err == nil && bytes.Equal(j.Payload, change{Token: a.token}.job(name).Payload), err
}

// announced returns the names of a repository of which a change is announced. The removals of names
// are no such changes; neither is the job that calls it, unless it has become one.
func (s *Service) announced(ctx context.Context, repository string, job int64) (names []string, err error) {
	open, err := s.catalog.Jobs.OpenOf(ctx, nameJob)
	if err != nil {
		return nil, err
	}
	for _, j := range open {
		ref, err := wire.ParseName(j.Key)
		var c change
		if err != nil || ref.Repository != repository || json.Unmarshal(j.Payload, &c) != nil {
			continue
		}
		if c.Remove && (j.N != job || j.Request == "") {
			continue
		}
		names = append(names, j.Key)
	}
	return names, nil
}

// beginDeletion locks a tag or manifest that is about to be deleted, or changed like that. Until
// endDeletion is called, or for deleteLease, no change begins to rely on it.
func (s *Service) beginDeletion(ctx context.Context, digest string) (catalog.Deletion, error) {
	for {
		d, may, err := s.catalog.Blobs.BeginAny(ctx, digest, deleteLease)
		if err != nil || may {
			return d, err
		}
		if !sleep.For(ctx, deletePause) { // another process deletes it
			return d, ctx.Err()
		}
	}
}

func (s *Service) endDeletion(ctx context.Context, d catalog.Deletion) error {
	ctx, end := catalog.Outlast(ctx)
	defer end()
	return s.catalog.Blobs.End(ctx, d)
}

// deleting calls fn between beginDeletion and endDeletion. The repository is locked.
func (s *Service) deleting(ctx context.Context, digest string, fn func(ctx context.Context) error) error {
	d, err := s.beginDeletion(ctx, digest)
	if err != nil {
		return err
	}
	err = d.Do(ctx, fn)
	return errors.Join(err, s.endDeletion(ctx, d))
}

// settle makes registry and catalog agree about a name.
func (s *Service) settle(ctx context.Context, j *jobs.Running) error {
	ref, err := wire.ParseName(j.Key)
	if err != nil {
		return err
	}
	var c change
	if err := json.Unmarshal(j.Payload, &c); err != nil {
		return err
	}
	if c.Remove {
		err = s.remove(ctx, ref, c, j.Lease())
	} else {
		err = s.compare(ctx, ref, j.Lease())
	}
	if errors.Is(err, catalog.ErrLost) { // the job runs again, or at another process
		return nil
	}
	if errors.Is(err, registry.ErrUnavailable) && !catalog.IsAway(err) && !s.registry.IsAway(ctx, err) {
		return fmt.Errorf("the registry's files of repository %s cannot be read: restore them, or push its images "+
			"again; then run lighter fsck --repair: %w", ref.Repository, err)
	}
	if isAway(err) {
		return &jobs.RetryError{Err: err}
	}
	return err
}

// compare copies what a name stands for from the registry to the catalog if they differ.
func (s *Service) compare(ctx context.Context, ref wire.Ref, l catalog.Lease) error {
	defer s.Lock(ref.Repository)()
	d, err := s.difference(ctx, ref)
	switch {
	case err != nil:
		return err
	case d.gone:
		return s.forget(ctx, l, ref.Name(), "")
	case d.changed:
		return s.readName(ctx, l, ref)
	}
	for _, digest := range d.missing {
		if err := s.forget(ctx, l, ref.Name(), digest); err != nil {
			return err
		}
	}
	return nil
}

// wasNamed reports whether the registry has, or had, an image.
func wasNamed(i catalog.Image) bool { return i.State == wire.StateReady || i.State == wire.StateStored }

// Remove removes a name, and its manifests that no other name needs. Chunks and blobs stay. A job
// does it, which goes on if ctx ends. A push that comes before the job wins.
func (s *Service) Remove(ctx context.Context, name string) error {
	_, err := s.awaitRemoval(ctx, name, func(ref wire.Ref) (int64, []byte, error) {
		j, err := s.removal(ctx, ref)
		if err != nil {
			return 0, nil, err
		}
		n, err := s.catalog.Jobs.Add(ctx, j, 0)
		return n, j.Payload, err
	})
	return err
}

// RemoveIf is Remove if still returns true, and nobody is just changing what the name stands for.
// It reports whether the name was removed.
func (s *Service) RemoveIf(ctx context.Context, name string, still func() (bool, error)) (removed bool, err error) {
	return s.awaitRemoval(ctx, name, func(ref wire.Ref) (int64, []byte, error) {
		if is, err := still(); err != nil || !is {
			return 0, nil, err
		}
		j, err := s.removal(ctx, ref)
		if err != nil {
			return 0, nil, err
		}
		n, err := s.catalog.Jobs.AddNew(ctx, j)
		return n, j.Payload, err
	})
}

// awaitRemoval waits for a job that removes a name, and reports whether it has. request queues the
// job, and returns its number and payload; 0: there is none. It is called while the repository is
// locked.
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
	s.jobs.Changed(nameJob, ref.Name())
	silent := report.NewSender(func(wire.Progress) error { return nil })
	j, err := s.jobs.AwaitEnd(ctx, nameJob, ref.Name(), n, silent)
	if errors.Is(err, catalog.ErrNotFound) { // a push has taken it over
		return false, nil
	}
	return err == nil && bytes.Equal(j.Payload, payload), err
}
