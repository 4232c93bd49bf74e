package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/names"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/report"
	"lighter/wire"
)

// errHubEnds is the error of waiting clients when the hub ends.
var errHubEnds = fmt.Errorf("the hub is stopping: the image stays queued, and another process of the hub, or its next "+
	"start, ingests it (%w)", context.Canceled)

// request is what a client waits for.
type request struct {
	name   string
	images []catalog.Image // requested images as they were at first; none if the job only copies manifests
	job    int64           // number of the job that fetches them; 0 if the hub had them
}

// readyTimeout bounds the calls of Config.Ready for one client.
const readyTimeout = 20 * time.Second

// Add adds an image, and reports progress to send until the request is over (isOver). Then it waits
// for the first startup packs of the images that have become ready, for readyTimeout at most. It
// returns the requested images or, if only manifests are to be stored, all images of the name.
//
// The work goes on if ctx ends or send fails. Errors are report.ErrBusy, report.ErrInvalid,
// registry.ErrQuota, pull.ErrSource, and those of the stores, of send and of the end of ctx. Others
// say that the hub stops, that an image was removed or its name given to another image, or that the
// job has failed or is paused.
func (s *Service) Add(
	ctx context.Context, add wire.Add, send func(wire.Progress) error,
) (images []catalog.Image, err error) {
	defer func() { err = report.Error(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errHubEnds) })()
	r, err := s.begin(ctx, add)
	if err != nil {
		return nil, err
	}
	err = s.jobs.Await(ctx, JobKind, r.name, report.NewSender(send), func(ctx context.Context) (bool, error) {
		return s.isOver(ctx, r)
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	if len(r.images) == 0 {
		return s.catalog.Images(ctx, r.name)
	}
	if images, err = s.reload(ctx, r.images); err == nil {
		wasReady := map[int64]bool{}
		for _, i := range r.images {
			wasReady[i.N] = i.State == wire.StateReady
		}
		s.prepareStarts(ctx, slices.DeleteFunc(slices.Clone(images), func(i catalog.Image) bool {
			return wasReady[i.N]
		}))
	}
	return images, err
}

// isOver reports whether a request is over: none of its images is pending, and the job that
// fetches them, if any, is done or one of them has failed. The error says that an image was removed
// or its name given to another image, or that the job has failed or is paused.
func (s *Service) isOver(ctx context.Context, r *request) (bool, error) {
	images, err := s.reload(ctx, r.images)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(images, isPending) {
		return false, s.checkPaused(ctx, r.name)
	}
	if r.job == 0 || slices.ContainsFunc(images, func(i catalog.Image) bool { return i.State == wire.StateFailed }) {
		return true, nil
	}
	j, err := s.catalog.Jobs.Get(ctx, r.job)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return true, nil // the job ended long ago
	case err != nil:
		return false, err
	case j.State == wire.JobCancelled:
		return false, errRemoved
	}
	return jobs.Done(j)
}

// checkPaused returns an error if the job of a name is paused: its clients would wait for ever.
func (s *Service) checkPaused(ctx context.Context, name string) error {
	j, err := s.catalog.Jobs.Open(ctx, JobKind, name)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return nil // the job has just ended
	case err == nil && j.State == wire.JobPaused:
		return jobs.PausedError(j)
	}
	return err
}

// reload returns the images as they are now. It fails if one of them was removed, or its name given
// to another image.
func (s *Service) reload(ctx context.Context, images []catalog.Image) ([]catalog.Image, error) {
	now, err := s.catalog.Numbered(ctx, numbersOf(images))
	if err == nil && len(now) < len(images) {
		err = errRemoved
	}
	return now, err
}

func numbersOf(images []catalog.Image) (numbers []int64) {
	for _, image := range images {
		numbers = append(numbers, image.N)
	}
	return numbers
}

// prepareStarts calls Config.Ready for the ready ones of the images. It only logs errors of Ready:
// the images are ready nevertheless.
func (s *Service) prepareStarts(ctx context.Context, images []catalog.Image) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, image := range images {
		if image.State != wire.StateReady {
			continue
		}
		if err := s.config.Ready(ctx, image); err != nil && ctx.Err() == nil {
			s.config.Log.Warn("cannot wait for the first startup packs of a ready image", "image", image.Name,
				"err", err)
		}
	}
}

// begin queues the images that a client requests with add.
func (s *Service) begin(ctx context.Context, add wire.Add) (*request, error) {
	platforms := s.config.Platforms
	if add.Platform != "" {
		if err := wire.CheckPlatform(add.Platform); err != nil {
			return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
		}
		platforms = []string{add.Platform}
	}
	if add.Source == "" {
		return s.beginOwn(ctx, add, platforms)
	}
	source, imageName, err := pull.ParseSource(add.Source)
	if err != nil {
		return nil, err
	}
	if add.Name != "" {
		imageName = add.Name
	}
	ref, err := report.ParseName(imageName)
	if err != nil {
		return nil, err
	}
	if err := s.config.Belongs(ref.Repository); err != nil {
		return nil, err
	}
	from, err := s.config.Registries.Open(ctx, source, loginOf(add).access(add.PlainHTTP))
	if err != nil {
		return nil, err
	}
	members, err := from.Expand(ctx, "", platforms)
	if err != nil {
		return nil, err
	}
	if ref.Digest != "" && ref.Digest != members.Root.Digest {
		return nil, fmt.Errorf("%w: the name %s has another digest than %s", report.ErrInvalid, imageName, add.Source)
	}
	w := work{Source: add.Source, PlainHTTP: add.PlainHTTP}
	r, err := s.beginCopy(ctx, ref, from, members, w.copying(ref.Name(), members, 0), loginOf(add))
	if err != nil {
		return nil, err
	}
	return r, s.catalog.Wants.Add(ctx, []catalog.Want{{Name: ref.Name(), By: catalog.ByHand, ByRules: true}}, nil)
}

// beginOwn queues an image that the hub's registry has. If add has a digest, the image with that
// digest gets the name first.
func (s *Service) beginOwn(ctx context.Context, add wire.Add, platforms []string) (*request, error) {
	ref, err := report.ParseName(add.Name)
	if err != nil {
		return nil, err
	}
	if err := s.config.Belongs(ref.Repository); err != nil {
		return nil, err
	}
	which := ref.Reference()
	if add.Digest != "" {
		if _, err := digest.Parse(add.Digest); err != nil || ref.Digest != "" && ref.Digest != add.Digest {
			return nil, fmt.Errorf("%w: digest %q is invalid, or not the digest in the name %s", report.ErrInvalid,
				add.Digest, add.Name)
		}
		which = add.Digest
	}
	images, err := s.config.Names.NameOwn(ctx, ref, which, platforms)
	if err != nil {
		return nil, err
	}
	return &request{name: ref.Name(), images: images}, nil
}

// beginCopy queues the job that fetches the wanted images of a source, unless they are ready.
func (s *Service) beginCopy(
	ctx context.Context, ref wire.Ref, from *pull.Source, members *oci.Members, job catalog.Job, l login,
) (*request, error) {
	if err := members.CheckPlatforms(); err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	repository := s.registry.Repository(ref.Repository)
	image, err := pull.NewImage(from, members, repository, s.config.MaxBlob)
	if err != nil {
		return nil, err
	}
	if job.Secret, err = l.seal(s.config.Secret, job.Key); err != nil {
		return nil, err
	}
	defer s.config.Names.Lock(ref.Repository)()
	if err := s.config.Quotas.AllowName(ctx, ref.Name(), members); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // the following is completed even if the client goes
	r := &request{name: ref.Name()}
	have, err := s.catalog.Images(ctx, r.name)
	if err != nil {
		return nil, err
	}
	defer s.jobs.Changed(JobKind, r.name)
	superseded := report.Reason(errorOf(r.name, errSuperseded))
	if r.images = ready(members, have); len(r.images) > 0 {
		// The last request decides what the name stands for.
		if err := s.noteUpstream(ctx, repository, image, image.Layers()); err != nil {
			return nil, err
		}
		if err := s.catalog.Supersede(ctx, job, members.Root.Digest, superseded); err != nil {
			return nil, err
		}
		return r, s.catalog.AddSource(ctx, r.images, from.Repository())
	}
	isUnwanted := func(i catalog.Image) bool { return i.State != wire.StateQueued }
	wanted := slices.DeleteFunc(names.ImagesOf(members), isUnwanted)
	r.images, r.job, err = s.catalog.Expect(ctx, wanted, from.Repository(), superseded, job)
	if errors.Is(err, catalog.ErrFull) {
		err = report.ErrBusy
	}
	return r, err
}

// ready returns the images of the wanted members if all of them are ready under the same root,
// otherwise none.
func ready(members *oci.Members, have []catalog.Image) []catalog.Image {
	var ready []catalog.Image
	for _, m := range members.Manifests {
		if !m.Wanted {
			continue
		}
		i := slices.IndexFunc(have, func(image catalog.Image) bool {
			return image.Digest == m.Digest && image.Root == members.Root.Digest && image.State == wire.StateReady
		})
		if i < 0 {
			return nil
		}
		ready = append(ready, have[i])
	}
	return ready
}
