package names

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"lighter/hub/catalog"
	"lighter/sleep"
	"lighter/wire"
)

// What a name stands for is in the registry and in the catalog, and no transaction changes both. So
// each change is announced first: a job is queued for the name, to run after settleAfter. When both
// have the change, the job is withdrawn. If the process ends before that, or another process
// changes the same name at the same time, the job runs: it makes the catalog agree with the
// registry.
//
// The lock of a repository (Service.Lock) excludes only changes by the same process. Between
// processes, an announcement excludes deletions of tags. A deletion begins in the catalog
// (catalog.Blobs), for a lease. Then it looks for announced changes of the name, and deletes
// nothing if there are any. A change, once it is announced, touches its tag and manifests, and so
// waits for the deletions that have begun.
const (
	// jobKind is the kind of these jobs. Their key is the name.
	jobKind     = "name"
	jobPriority = 1 // that of jobs of pushed images: clients wait for both
	settleAfter = time.Minute
	namesAtOnce = 4
	settleTries = 3
	// deleteLease is how long a tag or manifest may be locked by its deletion. Half of it bounds
	// the deletion.
	deleteLease = 10 * time.Second
	deletePause = 50 * time.Millisecond
)

// change is the payload of a job of a name (jobKind).
type change struct {
	Token  string `json:"token,omitempty"`  // random; no other change has it
	Remove bool   `json:"remove,omitempty"` // the name is to be removed
}

func (c change) job(name string) catalog.Job {
	payload, _ := json.Marshal(c) // never fails
	return catalog.Job{Kind: jobKind, Key: name, Payload: payload, Priority: jobPriority}
}

// Changing announces that a tag of the hub's registry is about to get another manifest or to be
// deleted, or that a manifest is about to be deleted with all its tags. The caller calls settled,
// without the lock, when the catalog has the change, too, or if nothing has changed. settled
// reports whether the change was announced until then. If nobody knows whether a manifest was
// deleted, settled is not called. The manifest then stays locked until deleteLease ends, because
// the storage may still delete it.
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
	end := func() {
		if err := s.endDeletion(ctx, deletion); err != nil {
			s.log.Warn("a manifest could not be unlocked after its deletion: pushes of it wait for some seconds",
				"digest", reference, "err", err)
		}
	}
	a, err := s.announceDeletion(ctx, repository, reference)
	if err != nil {
		end()
		return nil, err
	}
	return func() bool {
		end()
		return a.settled()
	}, nil
}

// announceDeletion announces that a manifest is about to be deleted with all its tags.
func (s *Service) announceDeletion(ctx context.Context, repository, digest string) (*announcement, error) {
	names, err := s.announced(ctx, repository) // the manifest may just be getting another tag
	if err != nil {
		return nil, err
	}
	known, err := s.catalog.NamesIn(ctx, repository, digest)
	if err != nil {
		return nil, err
	}
	names = append(names, known...)
	slices.Sort(names)
	return s.announce(ctx, slices.Compact(names)...)
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

// settled withdraws the announcement's jobs. It reports whether they were open until then. The
// repository is not locked.
func (a *announcement) settled() bool {
	ctx, end := catalog.Outlast(a.ctx)
	defer end()
	all := true
	for _, name := range a.names {
		lasted, err := a.catalog.Jobs.Withdraw(ctx, change{Token: a.token}.job(name))
		if err != nil {
			a.log.Warn("the job that compares a changed name could not be withdrawn, and will run",
				"image", name, "err", err)
		}
		a.jobs.Changed(jobKind, name)
		all = all && lasted
	}
	return all
}

// isLast reports whether no other change of the name was announced after this one.
func (a *announcement) isLast(ctx context.Context, name string) (bool, error) {
	j, err := a.catalog.Jobs.Open(ctx, jobKind, name)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	return err == nil && bytes.Equal(j.Payload, change{Token: a.token}.job(name).Payload), err
}

// announced returns the names of a repository whose changes are announced. Removals of names do not
// count.
func (s *Service) announced(ctx context.Context, repository string) (names []string, err error) {
	open, err := s.catalog.Jobs.OpenOf(ctx, jobKind)
	if err != nil {
		return nil, err
	}
	for _, j := range open {
		ref, err := wire.ParseName(j.Key)
		var c change
		if err != nil || ref.Repository != repository || json.Unmarshal(j.Payload, &c) != nil || c.Remove {
			continue
		}
		names = append(names, j.Key)
	}
	return names, nil
}

// beginDeletion locks a manifest by its digest, or a tag by its registry.TagKey. Either is about to
// be deleted, or the tag to be repaired. Until endDeletion is called, or for deleteLease, no change
// begins to rely on it.
func (s *Service) beginDeletion(ctx context.Context, digest string) (catalog.Deletion, error) {
	for {
		d, may, err := s.catalog.Blobs.BeginAny(ctx, digest, deleteLease)
		if err != nil || may {
			return d, err
		}
		if !sleep.For(ctx, deletePause) { // another process is deleting it
			return d, ctx.Err()
		}
	}
}

func (s *Service) endDeletion(ctx context.Context, d catalog.Deletion) error {
	ctx, end := catalog.Outlast(ctx)
	defer end()
	return s.catalog.Blobs.End(ctx, d)
}

// deleting calls fn, which deletes a tag or manifest, in a deletion that it begins and ends. The
// repository is locked.
func (s *Service) deleting(ctx context.Context, digest string, fn func(ctx context.Context) error) error {
	d, err := s.beginDeletion(ctx, digest)
	if err != nil {
		return err
	}
	return s.catalog.Blobs.Delete(ctx, d, fn)
}
