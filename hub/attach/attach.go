// Package attach attaches indexes to images of other registries, there: nodes that reach only the
// registry start the images lazily, too (package attached has the format).
//
// The configuration says for which repositories (registries.Registry.Attach). Each image that the
// hub has from there gets an index when its first layout is made, and another one when the layout
// has changed. The work on an image is a job of a low priority.
//
// The tables of the layers are not what the hub stores, so a job reads the layers once more, from
// their registry. If an index of one of the hub's keys is there already, its tables stay. The index
// and the startup packs are the hub's own.
//
// The catalog does not record what is attached: the last job of an image says it, as long as that
// is kept. The next job finds the index in the registry, and changes nothing.
//
// An index stays in the registry when its image is removed from the hub.
package attach

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"lighter/format/index"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/pull"
	"lighter/hub/registries"
	"lighter/hub/startup"
	"lighter/sleep"
	"lighter/wire"
)

// JobKind is the kind of the jobs. Their key is REPOSITORY@DIGEST.
const JobKind = "attach"

const (
	lookEvery = time.Minute // Service.LookEvery
	// pause is Service.Pause.
	pause = time.Hour
	// patience is how long an index with an older layout is left as it is while the layout goes on
	// to change, and the longest pause between two attempts.
	patience = 24 * time.Hour
)

// Config has the parts of a hub's domain that a Service uses.
type Config struct {
	Catalog    *catalog.Catalog
	Objects    *objects.Store
	Registries *registries.Registries
	Jobs       *jobs.Queue
	Keys       []ed25519.PrivateKey // sign the indexes
	Limits     tree.Limits
	TempDir    func(kind string) (string, error) // makes a directory for temporary files
	Log        *slog.Logger
}

// Service attaches the indexes of a domain. It is safe for concurrent use.
type Service struct {
	Config
	// LookEvery is the time between two looks for images to attach an index to. It is set before
	// Run.
	LookEvery time.Duration
	// Pause is the time from one index of an image to the next one, at least, and from an error of
	// the registry to the next attempt. It is set before Run.
	Pause time.Duration
}

// New returns a service, and adds its kind of jobs to the queue.
func New(c Config) *Service {
	s := &Service{Config: c, LookEvery: lookEvery, Pause: pause}
	c.Jobs.Add(jobs.Kind{Name: JobKind, AtOnce: 1, Run: s.run})
	return s
}

// Run queues the jobs that are due, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	for sleep.For(ctx, s.LookEvery) {
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("images cannot get attached indexes now", "err", err)
		}
	}
	return nil
}

// look queues the jobs that are due.
func (s *Service) look(ctx context.Context) error {
	if !s.Registries.AttachesAny() {
		return nil
	}
	images, err := s.Catalog.Sourced(ctx, "")
	if err != nil {
		return err
	}
	last, err := s.Catalog.Jobs.LastOf(ctx, JobKind)
	if err != nil {
		return err
	}
	changing, err := s.changing(ctx)
	if err != nil {
		return err
	}
	now, err := s.Catalog.Now(ctx)
	if err != nil {
		return err
	}
	for _, i := range images {
		key := i.Source + "@" + i.Digest
		j, known := last[key]
		if !s.Registries.Attaches(i.Source) || known && !s.isDue(&i, &j, changing[i.Tree.String()], now) ||
			!known && changing[i.Tree.String()] && now.Sub(i.Updated) < s.Pause {
			continue
		}
		n, err := s.Catalog.Jobs.AddNew(ctx, catalog.Job{Kind: JobKind, Key: key, Priority: jobs.Low})
		if err != nil {
			return err
		}
		if n != 0 {
			s.Jobs.Changed(JobKind, key)
		}
	}
	return nil
}

// changing returns the trees whose layouts are being changed.
func (s *Service) changing(ctx context.Context) (map[string]bool, error) {
	trees := map[string]bool{}
	for _, kind := range []string{catalog.LayoutJob, startup.RecompressJob} {
		open, err := s.Catalog.Jobs.OpenOf(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, j := range open {
			trees[j.Key] = true
		}
	}
	return trees, nil
}

// result is the result of a job.
type result struct {
	Startup  []byte   `json:"startup"`  // catalog.Sourced.Startup of the index
	Artifact string   `json:"artifact"` // its digest
	Keys     []string `json:"keys"`     // that have signed it
}

// keys returns the hub's public keys.
func (s *Service) keys() (all []string) {
	for _, key := range s.Keys {
		all = append(all, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	return all
}

// isDue reports whether an image is to get another index after its last job. A job that has failed
// is not repeated as long as it is kept: its reason would be the same.
func (s *Service) isDue(i *catalog.Sourced, last *catalog.Job, changing bool, now time.Time) bool {
	var r result
	if last.State != wire.JobDone || json.Unmarshal(last.Result, &r) == nil && bytes.Equal(r.Startup, i.Startup) &&
		slices.Equal(r.Keys, s.keys()) {
		return false
	}
	age := now.Sub(last.Updated)
	return age >= s.Pause && !changing || age >= patience
}

// run attaches an index to an image.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	source, digest, _ := strings.Cut(j.Key, "@")
	images, err := s.Catalog.Sourced(ctx, digest)
	if err != nil {
		return err
	}
	for _, i := range images {
		if i.Source != source || !s.Registries.Attaches(source) {
			continue
		}
		artifact, err := s.attach(ctx, &i, j)
		if err == nil {
			j.Result, err = json.Marshal(result{i.Startup, artifact, s.keys()})
		}
		return s.retried(err, time.Since(j.Created))
	}
	return nil // the image was removed, or the configuration has changed
}

// retried returns an error so that the job is tried again, if the error may pass by itself or by a
// change in the registry. The pauses grow with the age of the job.
func (s *Service) retried(err error, age time.Duration) error {
	rest := (*registries.RestError)(nil)
	switch {
	case errors.As(err, &rest):
		return &jobs.RetryError{Err: err, After: max(time.Until(rest.Until), time.Second)}
	case errors.Is(err, pull.ErrGone):
		return err
	case errors.Is(err, pull.ErrSource), errors.Is(err, objects.ErrNotFound): // a layout was replaced meanwhile
		return &jobs.RetryError{Err: err, After: max(s.Pause, min(age, patience))}
	}
	return err
}
