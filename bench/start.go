package bench

import (
	"context"
	"fmt"
	"time"

	"lighter/test/testkit/site"
)

// Start holds the figures of one start: a pull, a container until it was ready and until it ended,
// and a second container. Times are in seconds. Bytes are those that the machine received over the
// link since the pull began.
type Start struct {
	Pull   float64 `json:"pull_s"`
	Create float64 `json:"create_s"`
	Ready  float64 `json:"ready_s"` // from the start of the task until it was ready
	Run    float64 `json:"run_s"`   // from the start of the task until it ended

	// Figures of a second container, right after the first: the time of create and run, the time of
	// create alone, the time from the start of the task until it was ready, and the bytes that were
	// received over the link meanwhile.
	Second       float64 `json:"second_s"`
	SecondCreate float64 `json:"second_create_s"`
	SecondReady  float64 `json:"second_ready_s"`
	SecondBytes  int64   `json:"second_bytes"`

	PullBytes   int64  `json:"pull_bytes"`
	CreateBytes int64  `json:"create_bytes,omitempty"` // until the container was created; 0 in older results
	ReadyBytes  int64  `json:"ready_bytes"`
	Bytes       int64  `json:"bytes"` // until the first container ended
	Output      string `json:"-"`
}

// Total returns the time from the pull to the end of the first container, in seconds.
func (s Start) Total() float64 { return s.Pull + s.Create + s.Run }

// A Puller pulls an image and returns how long that took.
type Puller func(ctx context.Context, snapshotter, ref string) (time.Duration, error)

// Pulled holds the figures of a pull.
type Pulled struct {
	began int64 // bytes received over the link before the pull
	start Start
}

// Pull pulls an image. It is the first part of a start.
func (b *Bench) Pull(ctx context.Context, pull Puller, snapshotter, ref string) (p Pulled, err error) {
	if p.began, err = b.Site.Machine.Bytes(); err != nil {
		return p, err
	}
	took, err := pull(ctx, snapshotter, ref)
	if err != nil {
		return p, err
	}
	now, err := b.Site.Machine.Bytes()
	p.start.Pull, p.start.PullBytes = took.Seconds(), now-p.began
	return p, err
}

// Before returns a copy of p for another Run after the same pull: Run counts the pull's bytes, and
// the bytes that are received from now on.
func (b *Bench) Before(p Pulled) (Pulled, error) {
	now, err := b.Site.Machine.Bytes()
	p.began = now - p.start.PullBytes
	return p, err
}

// Run runs a workload of the pulled image.
func (b *Bench) Run(ctx context.Context, p Pulled, snapshotter, ref string, w Workload) (Start, error) {
	s := p.start
	first, err := b.Site.Machine.RunUntil(ctx, w.Ready, snapshotter, ref, w.Argv...)
	if err != nil {
		return s, err
	}
	now, err := b.Site.Machine.Bytes()
	s.Create, s.Ready, s.Run, s.Output = first.Create.Seconds(), first.Ready.Seconds(), first.Start.Seconds(),
		first.Output
	s.CreateBytes, s.ReadyBytes, s.Bytes = first.CreateBytes-p.began, first.ReadyBytes-p.began, now-p.began
	return s, err
}

// RunAgain runs the workload a second time, right after Run, and adds its figures to s.
func (b *Bench) RunAgain(ctx context.Context, s *Start, snapshotter, ref string, w Workload) error {
	before, err := b.Site.Machine.Bytes()
	if err != nil {
		return err
	}
	second, err := b.Site.Machine.RunUntil(ctx, w.Ready, snapshotter, ref, w.Argv...)
	if err != nil {
		return err
	}
	if !w.Serves() && second.Output != s.Output {
		return fmt.Errorf("output of %s: first %q, then %q", w, s.Output, second.Output)
	}
	now, err := b.Site.Machine.Bytes()
	s.Second, s.SecondCreate, s.SecondReady = second.Total().Seconds(), second.Create.Seconds(), second.Ready.Seconds()
	s.SecondBytes = now - before
	return err
}

// ColdStart wipes the machine, drops the page cache, and measures a start with mode, which is one
// of the site's two snapshotters.
func (b *Bench) ColdStart(ctx context.Context, mode string, w Workload) (s Start, err error) {
	if err := b.Wipe(ctx); err != nil {
		return s, err
	}
	p, err := b.Pull(ctx, b.Site.Machine.Pull, mode, site.Reference(w.Image))
	if err != nil {
		return s, err
	}
	if s, err = b.Run(ctx, p, mode, site.Reference(w.Image), w); err != nil {
		return s, err
	}
	if err = b.RunAgain(ctx, &s, mode, site.Reference(w.Image), w); err == nil && mode == site.Lighter {
		err = b.AssertLazy(ctx, w.Image)
	}
	return s, err
}
