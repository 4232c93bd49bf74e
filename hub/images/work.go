package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/names"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/registries"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	// JobKind is the kind of the jobs that fetch and ingest the images of a name. Their key is the
	// name.
	JobKind = "image"
	// imagesAtOnce bounds the names that a process works on at a time. urgentAtOnce of them are
	// only for pushed images: the hub has their blobs, while other images may depend on slow
	// sources.
	imagesAtOnce = 4
	urgentAtOnce = 1
	urgent       = 1 // priority of pushed images
	// collectedTries bounds the attempts at an image while collection removes parts that it has in
	// common with removed images. Then its job is tried again after a pause.
	collectedTries = 3
)

// work is the payload of a job.
type work struct {
	Root string `json:"root"` // digest of the manifest or index that the name is to refer to
	// Of images of another registry:
	Source    string   `json:"source,omitempty"` // docker://HOST/REPO:TAG
	PlainHTTP bool     `json:"plainHTTP,omitempty"`
	Platforms []string `json:"platforms,omitempty"` // wanted ones
	// Own says that the hub reads the source with its own login, if it has one: no user asked for
	// the image.
	Own bool `json:"own,omitempty"`
}

// copying returns the job that copies the wanted members of an image.
func (w work) copying(name string, members *oci.Members, priority int64) catalog.Job {
	w.Root, w.Platforms = members.Root.Digest, members.Platforms()
	return w.job(name, priority)
}

func (w work) job(name string, priority int64) catalog.Job {
	payload, _ := json.Marshal(w) // never fails
	return catalog.Job{Kind: JobKind, Key: name, Root: w.Root, Payload: payload, Priority: priority, ByUser: !w.Own}
}

// Jobs are the jobs of this package, as package names sees them.
type Jobs struct{}

var _ names.Ingestion = Jobs{}

// Kind returns JobKind.
func (Jobs) Kind() string { return JobKind }

// Job returns the job of a name whose images are in the hub's registry.
func (Jobs) Job(name, root string) catalog.Job { return work{Root: root}.job(name, urgent) }

// IsCopy reports whether a job copies images of another registry.
func (Jobs) IsCopy(j catalog.Job) bool {
	var w work
	return json.Unmarshal(j.Payload, &w) == nil && w.Source != ""
}

var (
	// errSuperseded ends the work on images of a name that was given to another image.
	errSuperseded = errors.New("the name was given to another image before this one was ready")
	errRemoved    = errors.New("the image was removed, or its name given to another image, before it was ready")
)

func errorOf(name string, err error) error { return fmt.Errorf("image %s: %w", name, err) }

// run fetches and ingests the images of a name.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	ref, err := wire.ParseName(j.Key)
	if err != nil {
		return err
	}
	limited, stop := context.WithTimeoutCause(ctx, s.ImageTime, &report.TooLongError{Limit: s.ImageTime})
	defer stop()
	err = s.ingestAll(limited, ref, j)
	releasing, end := catalog.Outlast(ctx)
	defer end()
	if releaseErr := s.catalog.Jobs.ReleaseLayers(releasing, j.Lease()); releaseErr != nil {
		s.config.Log.Warn("a job's claims of layers were not released: they end with the job", "err", releaseErr)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if tooLong := (*report.TooLongError)(nil); errors.As(context.Cause(limited), &tooLong) {
		return tooLong
	}
	if errors.Is(err, catalog.ErrCollected) { // collection may have ended after a pause
		return &jobs.RetryError{Err: err}
	}
	if rest := (*registries.RestError)(nil); errors.As(err, &rest) {
		return &jobs.RetryError{Err: err, After: max(time.Until(rest.Until), time.Second)}
	}
	return err
}

// ingestAll fetches the images of a name, and ingests them. If an image fails for a reason of its
// own, the catalog has the reason. An error concerns all images that are still pending.
func (s *Service) ingestAll(ctx context.Context, ref wire.Ref, j *jobs.Running) error {
	var w work
	if err := json.Unmarshal(j.Payload, &w); err != nil {
		return fmt.Errorf("parse the job: %w", err)
	}
	images, err := s.catalog.Images(ctx, j.Key)
	if err != nil {
		return err
	}
	images = slices.DeleteFunc(images, func(i catalog.Image) bool { return !isPending(i) || i.Root != w.Root })
	var source ingest.Source = s.registry.Repository(ref.Repository)
	named := func() error { return nil } // the registry has the images
	if w.Source != "" {
		copied, err := s.open(ctx, ref, w, images, j)
		if err != nil {
			return err
		}
		source = copied
		named = onceOK(func() error { return s.complete(ctx, ref, copied, j) })
	}
	var unread error
	for _, image := range images {
		err := s.ingest(ctx, image, source, j, named)
		if away.OneRead(err) != nil { // the other images of the name need not wait for this one
			unread = cmp.Or(unread, err)
			continue
		}
		if err != nil {
			return err
		}
		if len(images) > 1 {
			s.jobs.Changed(JobKind, j.Key) // for clients that wait for this image only
		}
	}
	if unread != nil {
		return unread
	}
	if len(images) == 0 {
		return named() // the manifests are only to be stored
	}
	return s.failure(ctx, images)
}

// onceOK returns fn, which is not called again after it has succeeded.
func onceOK(fn func() error) func() error {
	done := false
	return func() error {
		if done {
			return nil
		}
		err := fn()
		done = err == nil
		return err
	}
}

// ingest ingests an image, calls named so that the image has its name in the registry, and makes it
// ready.
// An error that is only about the image is recorded with it, and not returned.
func (s *Service) ingest(
	ctx context.Context, image catalog.Image, from ingest.Source, j *jobs.Running, named func() error,
) error {
	started := time.Now()
	log := s.config.Log.With("image", image.Name, "digest", image.Digest)
	err := s.catalog.Begin(ctx, j.Lease(), image.N)
	if errors.Is(err, catalog.ErrNotFound) { // it was removed
		return nil
	}
	if err != nil {
		return err
	}
	publish := func() error {
		p, err := s.ingester.Prepare(ctx, image, from, j.Lease(), &j.Progress)
		if err != nil {
			return err
		}
		defer p.Close()
		if err := named(); err != nil {
			return err
		}
		return p.Publish(ctx)
	}
	err = publish()
	for n := 1; n < collectedTries && errors.Is(err, catalog.ErrCollected); n++ {
		log.Info("image is ingested again: collection has removed a part of it", "err", err)
		err = publish()
	}
	if notImage := (*oci.NotImageError)(nil); errors.As(err, &notImage) {
		log.Info("manifest is stored and not ingested", "reason", notImage.Why)
		if err := named(); err != nil {
			return err
		}
		return s.end(ctx, image, wire.StateStored, "", j)
	}
	switch {
	case err == nil:
		log.Info("image is ready", "duration", time.Since(started))
		s.config.Published(ctx)
		return nil
	case errors.Is(err, catalog.ErrNotFound):
		log.Info("image was removed before it was ready")
		return nil
	case ctx.Err() != nil || errors.Is(err, catalog.ErrLost) || errors.Is(err, catalog.ErrCollected) ||
		jobs.IsRetried(err) || errors.As(err, new(*registries.RestError)):
		return err
	}
	why := report.Reason(errorOf(image.Name, err))
	log.Warn("image failed", "err", why)
	return s.end(ctx, image, wire.StateFailed, why, j)
}

// end records how the ingestion of an image has ended.
func (s *Service) end(ctx context.Context, image catalog.Image, state, why string, j *jobs.Running) error {
	err := s.catalog.End(ctx, j.Lease(), image.N, state, why)
	if errors.Is(err, catalog.ErrNotFound) { // it was removed
		return nil
	}
	return err
}

// failure returns why some of the images have failed, or nil.
func (s *Service) failure(ctx context.Context, images []catalog.Image) error {
	images, err := s.catalog.Numbered(ctx, numbersOf(images))
	errs := []error{err}
	for _, i := range images {
		if i.State == wire.StateFailed {
			errs = append(errs, errors.New(i.Error))
		}
	}
	return errors.Join(errs...)
}

// open returns the image of a job's source, for the platforms that the job or a pending image
// names.
func (s *Service) open(
	ctx context.Context, ref wire.Ref, w work, pending []catalog.Image, j *jobs.Running,
) (*pull.Image, error) {
	for _, i := range pending {
		if i.Platform != "" && !slices.Contains(w.Platforms, i.Platform) {
			w.Platforms = append(w.Platforms, i.Platform)
		}
	}
	l, err := unseal(s.config.Secret, j.Key, j.Secret)
	if err != nil {
		return nil, err
	}
	from, err := s.source(ctx, w, l)
	if err != nil {
		return nil, err
	}
	from.Recall(s.config.Memory) // the login could read the image when the job was queued
	members, err := from.Expand(ctx, w.Root, w.Platforms)
	if err != nil && !j.Unsealed.IsZero() {
		err = fmt.Errorf("%w (the job no longer has the login that it came with: add the image again)", err)
	}
	if err != nil {
		return nil, err
	}
	image, err := pull.NewImage(from, members, s.registry.Repository(ref.Repository), s.config.MaxBlob)
	if err == nil {
		s.leaveLayers(ctx, image, from, l != login{})
	}
	return image, err
}

// source opens the source of a job.
func (s *Service) source(ctx context.Context, w work, l login) (*pull.Source, error) {
	source, _, err := pull.ParseSource(w.Source)
	if err != nil {
		return nil, err
	}
	if w.Own {
		from, err := s.config.Upstream(ctx, pull.RepositoryOf(source), w.PlainHTTP)
		if err != nil {
			return nil, err
		}
		return from.At(source), nil
	}
	return s.config.Registries.Open(ctx, source, l.access(w.PlainHTTP))
}

// complete copies what is still missing of an image, and gives it its name.
func (s *Service) complete(ctx context.Context, ref wire.Ref, i *pull.Image, j *jobs.Running) error {
	if err := i.Copy(ctx, &j.Progress); err != nil {
		return err
	}
	return s.config.Names.NameCopy(ctx, j.Lease(), ref, i.Members.Root, func() error {
		if err := s.noteUpstream(ctx, s.registry.Repository(ref.Repository), i, i.Left()); err != nil {
			return err
		}
		return i.PutManifests(ctx, ref.Tag)
	})
}

// isPending reports whether an image is to be ingested.
func isPending(i catalog.Image) bool {
	return i.State == wire.StateQueued || i.State == wire.StateActive
}
