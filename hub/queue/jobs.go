package queue

import (
	"context"
	"errors"
	"slices"

	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// job is an image that is queued or active, as its waiting clients see it.
type job struct {
	report.Progress
	done chan struct{} // closed when the image is ready, failed, stored or removed
}

// job returns the job of an image, whether its turn has come or not.
func (q *Queue) job(n int64) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[n]
	if j == nil {
		j = &job{done: make(chan struct{})}
		q.jobs[n] = j
	}
	return j
}

// Finish wakes the clients that wait for an image. The catalog has its final state.
func (q *Queue) Finish(image catalog.Image) {
	q.mu.Lock()
	if j := q.jobs[image.N]; j != nil {
		close(j.done)
		delete(q.jobs, image.N)
	}
	q.mu.Unlock()
	q.images.Finished(image)
}

// Await waits until none of the images is queued or active, and returns them as they are then. It
// sends their progress, and the other progress that is given, to s.
func (q *Queue) Await(
	ctx context.Context, images []catalog.Image, s *report.Sender, other ...*report.Progress,
) ([]catalog.Image, error) {
	for {
		now, err := q.Reload(ctx, images)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(now, IsPending)
		if i < 0 {
			return now, nil
		}
		if err := q.await(ctx, now[i], s, other); err != nil {
			return nil, err
		}
	}
}

func (q *Queue) await(ctx context.Context, image catalog.Image, s *report.Sender, other []*report.Progress) error {
	job := q.job(image.N)
	// The image may have ended before the job existed.
	now, err := q.store.Numbered(ctx, []int64{image.N})
	if err != nil {
		return err
	}
	if len(now) == 0 || !IsPending(now[0]) {
		q.Finish(image)
	}
	return s.Await(ctx, job.done, append(other, &job.Progress)...)
}

// Reload returns the images as they are now. It fails if one of them was removed.
func (q *Queue) Reload(ctx context.Context, images []catalog.Image) ([]catalog.Image, error) {
	var numbers []int64
	for _, image := range images {
		numbers = append(numbers, image.N)
	}
	now, err := q.store.Numbered(ctx, numbers)
	if err == nil && len(now) < len(images) {
		err = errors.New("the image was removed, or its name given to another image, before it was ready")
	}
	return now, err
}

// IsPending reports whether an image is queued or active.
func IsPending(i catalog.Image) bool {
	return i.State == wire.StateQueued || i.State == wire.StateActive
}
