// Package expiry removes the images that the retention rules let go, as a job of the hub: once a
// day, and when an administrator asks for it. An image is removed as `lighter rm` does it. Just
// before that, the job checks that the image was neither pushed nor used since the rules were
// applied.
package expiry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/hub/retention"
	"lighter/wire"
)

const (
	// JobKind is the kind of the job, and jobKey the key of the only one.
	JobKind = "retention"
	jobKey  = "all"

	every = 24 * time.Hour // from the end of a job to the next one
)

// Images removes images.
type Images interface {
	// RemoveIf removes a name if still returns true and no other change of the name is in progress.
	// While still runs, this process does not change the repository. RemoveIf reports whether it
	// has removed the name.
	RemoveIf(ctx context.Context, name string, still func() (bool, error)) (removed bool, err error)
}

// Service applies retention rules. It is safe for concurrent use.
type Service struct {
	policy  retention.Policy
	catalog *catalog.Catalog
	images  Images
	jobs    *jobs.Queue
	log     *slog.Logger

	removed atomic.Int64 // images
}

// New returns a service that applies a policy, and adds its kind of jobs to the queue. If there are
// rules, the queue runs a job daily.
func New(p retention.Policy, c *catalog.Catalog, images Images, q *jobs.Queue, log *slog.Logger) *Service {
	s := &Service{policy: p, catalog: c, images: images, jobs: q, log: log}
	k := jobs.Kind{Name: JobKind, Key: jobKey, AtOnce: 1, Run: s.run}
	if len(p.Rules) > 0 {
		k.Every = every
	}
	q.Add(k)
	return s
}

// work is the payload of a job.
type work struct {
	// Confirmed are repositories of which the rules may remove any share of the images.
	Confirmed []string `json:"confirmed,omitempty"`
}

// Start queues a job that applies the rules as soon as possible, and returns the job. In confirmed
// repositories, the rules may remove any share of the images. The confirmations of an earlier job
// that has not ended stay valid, unless that job is being cancelled. The error wraps
// report.ErrInvalid if there is no rule, or no image in a confirmed repository.
func (s *Service) Start(ctx context.Context, confirmed []string) (catalog.Job, error) {
	if len(s.policy.Rules) == 0 {
		return catalog.Job{}, fmt.Errorf("%w: the hub has no retention rules: add [[retention]] to its configuration",
			report.ErrInvalid)
	}
	verdicts, err := s.Plan(ctx)
	if err != nil {
		return catalog.Job{}, err
	}
	for _, repository := range confirmed {
		if !slices.ContainsFunc(verdicts, func(v retention.Verdict) bool { return v.Repository == repository }) {
			return catalog.Job{}, fmt.Errorf("%w: there is no image in the repository %q to confirm", report.ErrInvalid,
				repository)
		}
	}
	j := catalog.Job{Kind: JobKind, Key: jobKey, Priority: 1, ByUser: true}
	n, err := s.catalog.Jobs.AddMerged(ctx, j, func(open catalog.Job) ([]byte, error) {
		return merged(open, confirmed)
	})
	if err != nil {
		return catalog.Job{}, err
	}
	s.jobs.Changed(JobKind, jobKey)
	return s.catalog.Jobs.Get(ctx, n)
}

// merged returns the payload of a requested job: the repositories in confirmed and, unless the open
// job is being cancelled, those of the open job. If no job is open, open is the zero job.
func merged(open catalog.Job, confirmed []string) (payload []byte, err error) {
	w := work{slices.Clone(confirmed)}
	if open.Request != wire.JobCancel {
		before, err := parse(open)
		if err != nil {
			return nil, err
		}
		w.Confirmed = append(w.Confirmed, before.Confirmed...)
	}
	slices.Sort(w.Confirmed)
	w.Confirmed = slices.Compact(w.Confirmed)
	return json.Marshal(w)
}

// parse returns the payload of a job. A periodic job, and the zero job, have none.
func parse(j catalog.Job) (w work, err error) {
	if len(j.Payload) == 0 {
		return w, nil
	}
	if err := json.Unmarshal(j.Payload, &w); err != nil {
		return w, fmt.Errorf("parse the job: %w", err)
	}
	return w, nil
}

// Plan returns what would become of each image now.
func (s *Service) Plan(ctx context.Context) ([]retention.Verdict, error) {
	images, now, err := s.read(ctx, "")
	return s.policy.Judge(images, now, nil), err
}

// read returns the images of a name, or of all names if name is "". It also returns the database's
// time.
func (s *Service) read(ctx context.Context, name string) ([]retention.Image, time.Time, error) {
	keepers, err := s.catalog.Wants.Keepers(ctx, name)
	if err != nil {
		return nil, time.Time{}, err
	}
	uses, now, err := s.catalog.NameUses(ctx, name)
	images := make([]retention.Image, 0, len(uses))
	for _, u := range uses {
		ref, err := wire.ParseName(u.Name)
		if err != nil {
			return nil, now, err
		}
		images = append(images, retention.Image{Name: u.Name, Repository: ref.NamedRepository(), Tag: ref.Tag,
			Ready: u.Ready, Pushed: u.Pushed, Used: u.Used, Bytes: u.Bytes,
			WantedBy: keepers[u.Name]})
	}
	return images, now, err
}

// run applies the rules once, as a job.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	w, err := parse(j.Job)
	if err != nil {
		return err
	}
	err = s.apply(ctx, w.Confirmed)
	if err != nil && !catalog.IsAway(err) {
		// Do not repeat the job: often the registry cannot read the files of one name, and the
		// other names are removed already. The next daily job tries that name again, which is soon
		// enough.
		return away.Final(err)
	}
	return err
}

func (s *Service) apply(ctx context.Context, confirmed []string) error {
	images, now, err := s.read(ctx, "")
	if err != nil {
		return err
	}
	var failed error
	waits := map[string]int{}
	for _, v := range s.policy.Judge(images, now, confirmed) {
		if v.Then == retention.Waits {
			waits[v.Repository]++
		}
		if v.Then != retention.Goes {
			continue
		}
		removed, err := s.images.RemoveIf(ctx, v.Name, func() (bool, error) { return s.still(ctx, v.Image) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			failed = errors.Join(failed, fmt.Errorf("remove %s: %w", v.Name, err))
		}
		if removed {
			s.removed.Add(1)
			s.log.Info("image removed by a retention rule", "image", v.Name, "reason", v.Why, "bytes", v.Bytes)
		}
	}
	for repository, n := range waits {
		s.log.Warn("retention rules would remove too many images of a repository: they stay until an administrator "+
			"confirms it (lighter retention)", "repository", repository, "images", n)
	}
	return failed
}

// still reports whether an image has kept its name, and nothing by which it was judged has changed:
// above all, it was neither pushed nor used since.
func (s *Service) still(ctx context.Context, before retention.Image) (bool, error) {
	images, _, err := s.read(ctx, before.Name)
	return err == nil && len(images) == 1 && images[0] == before, err
}

// Counts are figures for metrics.
type Counts struct {
	Removed int64 // images, since the process started
	Waiting int64 // images whose removal by the rules has to be confirmed
}

// Counts returns the figures.
func (s *Service) Counts(ctx context.Context) (Counts, error) {
	c := Counts{Removed: s.removed.Load()}
	if len(s.policy.Rules) == 0 {
		return c, nil
	}
	verdicts, err := s.Plan(ctx)
	for _, v := range verdicts {
		if v.Then == retention.Waits {
			c.Waiting++
		}
	}
	return c, err
}
