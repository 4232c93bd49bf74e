package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	// jobKind is the kind of the jobs that bring and ingest the images of a name. Their key is the
	// name.
	jobKind = "image"
	// imagesAtOnce bounds the names that are worked on at a time. Pushed images are urgent: their
	// blobs are here, while other images may depend on slow sources.
	imagesAtOnce = 4
	urgentAtOnce = 1
	urgent       = 1
	// staleEvery is the interval in which stale names are read again.
	staleEvery = 5 * time.Second
)

// work is the payload of a job.
type work struct {
	Root string `json:"root"` // digest of the manifest or index that the name is to refer to
	// Of images of another registry:
	Source    string   `json:"source,omitempty"` // docker://HOST/REPO:TAG
	PlainHTTP bool     `json:"plainHTTP,omitempty"`
	Platforms []string `json:"platforms,omitempty"` // wanted ones
}

func (w work) job(name string, priority int64) catalog.Job {
	payload, _ := json.Marshal(w) // never fails
	return catalog.Job{Kind: jobKind, Key: name, Payload: payload, Priority: priority}
}

// pushJob returns the job of a name whose images are in the hub's registry.
func pushJob(name, root string) catalog.Job { return work{Root: root}.job(name, urgent) }

var (
	// errSuperseded ends the work on images of a name that was given to another image.
	errSuperseded = errors.New("the name was given to another image before this one was ready")
	errRemoved    = errors.New("the image was removed, or its name given to another image, before it was ready")
)

func errorOf(name string, err error) error { return fmt.Errorf("image %s: %w", name, err) }

// run brings and ingests the images of a name.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	ref, err := wire.ParseName(j.Key)
	if err != nil {
		return err
	}
	limited, stop := context.WithTimeoutCause(ctx, s.ImageTime, &report.TooLongError{Limit: s.ImageTime})
	defer stop()
	err = s.bring(limited, ref, j)
	releaseErr := s.catalog.ReleaseLayers(context.WithoutCancel(ctx), j.Lease())
	if err == nil || ctx.Err() != nil {
		return cmp.Or(err, releaseErr)
	}
	if tooLong := (*report.TooLongError)(nil); errors.As(context.Cause(limited), &tooLong) {
		err = tooLong
	}
	// What has not ended yet fails for the same reason.
	failErr := s.jobs.Persist(ctx, "fail images of a name", func(ctx context.Context) error {
		return s.catalog.FailPending(ctx, j.Key, report.Reason(errorOf(j.Key, err)))
	})
	return cmp.Or(failErr, err)
}

// giveUp makes the images of a name fail whose job will not run again.
func (s *Service) giveUp(ctx context.Context, j catalog.Job, reason string) error {
	return s.catalog.FailPending(ctx, j.Key, report.Reason(fmt.Errorf("image %s: %s", j.Key, reason)))
}

// bring brings the images of a name, and ingests them. The images that fail for reasons of their own
// have those in the catalog then; other errors concern all that are still pending.
func (s *Service) bring(ctx context.Context, ref wire.Ref, j *jobs.Running) error {
	var w work
	if err := json.Unmarshal(j.Payload, &w); err != nil {
		return fmt.Errorf("parse the job: %w", err)
	}
	var source ingest.Source = s.registry.Repository(ref.Repository)
	var coming *pull.Image // nil: the registry has the images
	if w.Source != "" {
		var err error
		if coming, err = s.open(ctx, ref, w, j); err != nil {
			return err
		}
		source = coming
	}
	images, err := s.catalog.Images(ctx, j.Key)
	if err != nil {
		return err
	}
	images = slices.DeleteFunc(images, func(i catalog.Image) bool { return !isPending(i) || i.Root != w.Root })
	var prepared []*ingest.Prepared
	defer func() {
		for _, p := range prepared {
			p.Close()
		}
	}()
	for _, image := range images {
		p, err := s.prepare(ctx, image, source, j)
		if err != nil {
			return err
		}
		if p != nil {
			prepared = append(prepared, p)
		}
	}
	if coming != nil && (len(images) == 0 || len(prepared) > 0) {
		if err := s.complete(ctx, ref, coming, j); err != nil {
			return err
		}
	}
	for _, p := range prepared {
		if err := s.publish(ctx, p, j); err != nil {
			return err
		}
	}
	return s.failure(ctx, images)
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

// open returns the image of a job's source.
func (s *Service) open(ctx context.Context, ref wire.Ref, w work, j *jobs.Running) (*pull.Image, error) {
	l, err := unseal(s.config.Secret, j.Key, j.Secret)
	if err != nil {
		return nil, err
	}
	source, _, err := pull.ParseSource(w.Source)
	if err != nil {
		return nil, err
	}
	from, err := pull.OpenSource(ctx, s.config.Sources, source, wire.Add{PlainHTTP: w.PlainHTTP, Username: l.Username,
		Password: l.Password, Token: l.Token, RegistryToken: l.RegistryToken})
	if err != nil {
		return nil, err
	}
	members, err := from.Expand(ctx, w.Root, w.Platforms)
	if err != nil {
		return nil, err
	}
	return pull.NewImage(from, members, s.registry.Repository(ref.Repository), s.config.MaxBlob)
}

// prepare ingests an image. It returns nil if the image has ended: it has failed, is only stored, or
// was removed.
func (s *Service) prepare(
	ctx context.Context, image catalog.Image, from ingest.Source, j *jobs.Running,
) (*ingest.Prepared, error) {
	started := time.Now()
	err := s.catalog.Begin(ctx, j.Lease(), image.N)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := s.ingester.Prepare(ctx, image, from, j.Lease(), &j.Progress)
	if err == nil {
		s.config.Log.Debug("image is prepared", "image", image.Name, "digest", image.Digest,
			"duration", time.Since(started))
		return p, nil
	}
	return nil, s.end(ctx, image, err, j)
}

// publish makes a prepared image ready.
func (s *Service) publish(ctx context.Context, p *ingest.Prepared, j *jobs.Running) error {
	image := p.Image
	err := p.Publish(ctx)
	if errors.Is(err, catalog.ErrNotFound) {
		s.config.Log.Info("image was removed before it was ready", "image", image.Name, "digest", image.Digest)
		return nil
	}
	if err != nil {
		return s.end(ctx, image, err, j)
	}
	s.config.Log.Info("image is ready", "image", image.Name, "digest", image.Digest,
		"duration", time.Since(j.Updated))
	return nil
}

// end records how the ingestion of an image has ended with an error. It returns the error if it is
// not about the image: then the job ends.
func (s *Service) end(ctx context.Context, image catalog.Image, err error, j *jobs.Running) error {
	if ctx.Err() != nil || errors.Is(err, catalog.ErrLost) {
		return err
	}
	log := s.config.Log.With("image", image.Name, "digest", image.Digest)
	state, why := wire.StateFailed, ""
	var notImage *oci.NotImageError
	if errors.As(err, &notImage) {
		log.Info("manifest is stored and not ingested", "reason", notImage.Why)
		state = wire.StateStored
	} else {
		why = report.Reason(errorOf(image.Name, err))
		log.Warn("image failed", "err", why)
	}
	return s.jobs.Persist(ctx, "record how an image ended", func(ctx context.Context) error {
		err := s.catalog.End(ctx, j.Lease(), image.N, state, why)
		if errors.Is(err, catalog.ErrNotFound) { // it was removed
			err = nil
		}
		return err
	})
}

// complete copies what is still missing of an image, and gives it its name.
func (s *Service) complete(ctx context.Context, ref wire.Ref, i *pull.Image, j *jobs.Running) error {
	if err := i.Copy(ctx, &j.Progress); err != nil {
		return err
	}
	defer s.Lock(ref.Repository)()
	if ctx.Err() != nil { // the name was removed, or given to another image
		return context.Cause(ctx)
	}
	if err := i.PutManifests(ctx, ref.Tag); err != nil {
		return err
	}
	// No platform is wanted here: the wanted images were queued with the job.
	members, err := oci.Expand(ctx, s.registry.Repository(ref.Repository), i.Members.Root, nil)
	if err != nil {
		return err
	}
	if err := s.catalog.NameAs(ctx, j.Lease(), ref.Name(), imagesOf(members)); err != nil {
		s.markStale(ref)
		return err
	}
	return nil
}

// isPending reports whether an image is to be ingested.
func isPending(i catalog.Image) bool {
	return i.State == wire.StateQueued || i.State == wire.StateActive
}

var _ ingest.Source = registry.Repository{}
