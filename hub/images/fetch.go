package images

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/report"
	"lighter/wire"
)

// Fetch is an image of another registry that the hub fetches although no user waits for it.
type Fetch struct {
	Name      string
	Source    string // docker://HOST/REPO:TAG
	PlainHTTP bool
	Platforms []string // empty: Config.Platforms
	// Root is the digest of a manifest that the hub has just read for a client, whom the source's
	// registry has let read it. What Config.Memory has of the image is not read again. Empty: the
	// source's reference says which manifest.
	Root string
	// Priority is 0 if a user waits for the image, jobs.Low or jobs.Lowest.
	Priority int64
}

// maxFetches bounds the open jobs that fetch or ingest images beyond which Queue queues no further
// one. It leaves room for users. For images of the lowest priority the bound is maxLowest, so that
// a large list leaves room for others.
const (
	maxFetches = 5000
	maxLowest  = 4000
)

// Queue queues the job that fetches an image, and returns the digest that the source's reference
// has. It does nothing if the image is ready, or a job is fetching it. from is the source, opened
// with the hub's own login. Errors are those of Add: above all report.ErrBusy if too many images
// wait.
func (s *Service) Queue(ctx context.Context, f Fetch, from *pull.Source) (digest string, err error) {
	defer func() { err = report.Error(err) }()
	ref, err := report.ParseName(f.Name)
	if err != nil {
		return "", err
	}
	if err := s.config.Belongs(ref.Repository); err != nil {
		return "", err
	}
	platforms := f.Platforms
	if len(platforms) == 0 {
		platforms = s.config.Platforms
	}
	most := int64(maxFetches)
	if f.Priority == jobs.Lowest {
		most = maxLowest
	}
	if open, err := s.openJobs(ctx); err != nil {
		return "", err
	} else if open >= most {
		return "", report.ErrBusy
	}
	if f.Root != "" {
		from.Recall(s.config.Memory)
	}
	members, err := from.Expand(ctx, f.Root, platforms)
	if err != nil {
		return "", err
	}
	digest = members.Root.Digest
	if ref.Digest != "" && ref.Digest != digest {
		return "", fmt.Errorf("%w: the name %s has another digest than %s", report.ErrInvalid, f.Name, f.Source)
	}
	w := work{Source: f.Source, PlainHTTP: f.PlainHTTP, Own: true}
	job := w.copying(ref.Name(), members, f.Priority)
	if fetching, err := s.isFetching(ctx, job, members); err != nil || fetching {
		return digest, err
	}
	_, err = s.beginCopy(ctx, ref, from, members, job, login{})
	return digest, err
}

// isFetching reports whether an open job ingests the images that a job is to fetch. A user may
// wait for that job, and it may have a login that the new job lacks.
func (s *Service) isFetching(ctx context.Context, job catalog.Job, wanted *oci.Members) (bool, error) {
	open, err := s.catalog.Jobs.Open(ctx, JobKind, job.Key)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	if err != nil || open.Root != job.Root {
		return false, err
	}
	have, err := s.catalog.Images(ctx, job.Key)
	for _, m := range wanted.Manifests {
		if m.Wanted && !slices.ContainsFunc(have, func(i catalog.Image) bool {
			return i.Digest == m.Digest && (isPending(i) || i.State == wire.StateReady)
		}) {
			return false, err
		}
	}
	return err == nil, err
}

// openJobs returns the number of open jobs that fetch or ingest images.
func (s *Service) openJobs(ctx context.Context) (n int64, err error) {
	counts, err := s.catalog.Jobs.Count(ctx)
	for of, count := range counts {
		if of[0] == JobKind {
			n += count
		}
	}
	return n, err
}
