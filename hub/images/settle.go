package images

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/wire"
)

// What a name stands for is in the registry and in the catalog, and no transaction changes both. So
// a change is announced before: Changing queues a job for the name, to run after settleAfter. When
// both have the change, the job is withdrawn. If the process ends before that, or another process
// changes the same name at the same time, the job runs: it makes the catalog agree with the
// registry.
const (
	// nameJob is the kind of these jobs. Their key is the name.
	nameJob     = "name"
	settleAfter = time.Minute
	namesAtOnce = 4
	settleTries = 3
	settlePause = 10 * time.Second
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
// or a manifest with all its tags. settled is called when the catalog has the change, too, or
// nothing has changed.
func (s *Service) Changing(ctx context.Context, repository, reference string) (settled func(), err error) {
	names := []string{wire.Ref{Repository: repository, Tag: reference}.Name()}
	if strings.Contains(reference, ":") { // tags have no colon, digests have one
		if names, err = s.catalog.NamesIn(ctx, repository, reference); err != nil {
			return nil, err
		}
	}
	token := rand.Text()
	for _, name := range names {
		j := change{Token: token}.job(name)
		j.Postpones = true
		if _, err := s.catalog.Jobs.Add(ctx, j, settleAfter); err != nil {
			return nil, err
		}
	}
	return func() {
		for _, name := range names {
			if err := s.catalog.Jobs.Withdraw(context.WithoutCancel(ctx), change{Token: token}.job(name)); err != nil {
				s.config.Log.Warn("a name is compared once more", "image", name, "err", err) // by its job
			}
			s.jobs.Changed(nameJob, name)
		}
	}, nil
}

// changing is Changing for a name.
func (s *Service) changing(ctx context.Context, ref wire.Ref) (settled func(), err error) {
	if ref.Tag == "" {
		return func() {}, nil
	}
	return s.Changing(ctx, ref.Repository, ref.Tag)
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
		err = s.compare(ctx, ref)
	}
	if isAway(err) {
		return &jobs.RetryError{Err: err}
	}
	return err
}

// compare copies what a name stands for from the registry to the catalog if they differ.
func (s *Service) compare(ctx context.Context, ref wire.Ref) error {
	defer s.Lock(ref.Repository)()
	d, err := s.difference(ctx, ref)
	switch {
	case err != nil:
		return err
	case d.gone:
		return s.forget(ctx, ref.Name(), "")
	case d.changed:
		return s.readName(ctx, ref)
	}
	for _, digest := range d.missing {
		if err := s.forget(ctx, ref.Name(), digest); err != nil {
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
	err = s.jobs.Await(ctx, nameJob, ref.Name(), silent, func(ctx context.Context) (bool, error) {
		j, err := s.catalog.Jobs.Get(ctx, n)
		switch {
		case errors.Is(err, catalog.ErrNotFound): // a push has taken it over
			return true, nil
		case err != nil:
			return false, err
		case j.State == wire.JobFailed:
			return false, errors.New(j.Error)
		case j.State == wire.JobCancelled:
			return false, errors.New("the removal was cancelled")
		case j.State == wire.JobPaused:
			return false, jobs.PausedError(j)
		}
		removed = j.State == wire.JobDone && bytes.Equal(j.Payload, payload)
		return j.State == wire.JobDone, nil
	})
	return removed, err
}
