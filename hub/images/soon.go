package images

import (
	"context"
	"fmt"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/wire"
)

const (
	// turnTime bounds how long an image is expected to wait for its turn. An image that waits
	// longer has others before it.
	turnTime = 2 * time.Second
	// restTime is about how long it takes to make and publish a tree after its layers were read.
	restTime = 500 * time.Millisecond
)

// Soon returns when the pending image with a manifest will be ready, by what its job has read and
// has still to read. Layers that the hub has, or that other images are bringing, do not count. The
// error is catalog.ErrNotFound if there is no such image, or if nobody can say when it will be
// ready.
func (s *Service) Soon(ctx context.Context, digest string) (*wire.Soon, error) {
	image, err := s.catalog.Pending(ctx, digest)
	if err != nil {
		return nil, err
	}
	j, err := s.catalog.Jobs.Open(ctx, JobKind, image.Name)
	if err != nil {
		return nil, err
	}
	isNext := j.State == wire.JobQueued && j.Attempts == 0 && time.Since(j.Created) < turnTime
	if j.State != wire.JobRunning && !isNext {
		return nil, fmt.Errorf("the job of image %s is %s: %w", image.Name, j.State, catalog.ErrNotFound)
	}
	lines, err := s.jobs.Progress(ctx, JobKind, image.Name)
	if err != nil {
		return nil, err
	}
	return &wire.Soon{Seconds: secondsLeft(lines), Bytes: image.Size}, nil
}

// secondsLeft returns how many seconds a job with that progress takes to its end.
func secondsLeft(lines []wire.Progress) float64 {
	var left int64
	for _, line := range lines {
		if line.Step == ingest.LayerStep {
			left += max(0, line.Total-line.Bytes)
		}
	}
	return float64(left)/ingest.SplitRate + restTime.Seconds()
}
