package pull

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	copiesAtOnce = 2   // copies that run
	maxCopies    = 100 // copies that run or wait; beyond these the hub is busy
)

var errUnwanted = errors.New("no image and no caller waits for the copy")

// Images are the images that copies bring.
type Images interface {
	// Waiting lists the images of a name that are queued or active.
	Waiting(ctx context.Context, name string) ([]catalog.Image, error)
	// CopyBegun is called when the blobs of a copy begin to arrive.
	CopyBegun(c *Copy)
	// Complete gives the name to the image, whose blobs have all been copied.
	Complete(ctx context.Context, c *Copy) error
	// CopyFailed is called at the end of a copy that failed. It calls Copies.Forget while no image
	// can be added to the name. Until then an image whose turn comes sees why the copy failed.
	CopyFailed(c *Copy, err error)
	// CopyEnded is called after a copy that did not fail.
	CopyEnded(c *Copy)
	// Superseded is called before Supersede ends a copy.
	Superseded(c *Copy)
}

// Copies are the copies that run or wait. They are safe for concurrent use.
type Copies struct {
	// ImageTime bounds one copy. It is set before Run.
	ImageTime time.Duration

	registry *registry.Registry
	images   Images
	log      *slog.Logger
	maxBlob  int64 // bytes

	life    context.Context     // of all copies
	slots   *semaphore.Weighted // for copies that run
	pending chan *Copy

	mu     sync.Mutex // guards the following; not held during calls of images
	copies map[copyKey]*Copy
}

// NewCopies returns copies to r of blobs of at most maxBlob bytes. They end with life.
func NewCopies(
	life context.Context, r *registry.Registry, images Images, maxBlob int64, imageTime time.Duration, log *slog.Logger,
) *Copies {
	return &Copies{ImageTime: imageTime, registry: r, images: images, log: log, maxBlob: maxBlob, life: life,
		slots: semaphore.NewWeighted(copiesAtOnce), pending: make(chan *Copy, maxCopies), copies: map[copyKey]*Copy{}}
}

// Run runs the copies until their life ends.
func (s *Copies) Run() error {
	var group errgroup.Group
	for {
		select {
		case c := <-s.pending:
			group.Go(func() error { s.run(c); return nil })
		case <-s.life.Done():
			return errors.Join(s.life.Err(), group.Wait())
		}
	}
}

// Prepare returns a copy of what a source has to ref. It does nothing before Join. The error
// wraps report.ErrInvalid.
func (s *Copies) Prepare(ref wire.Ref, from *Source, members *oci.Members) (*Copy, error) {
	c := &Copy{Ref: ref, Source: from, Members: members,
		key: copyKey{ref.Name(), members.Root.Digest, members.Platforms()},
		to:  s.registry.Repository(ref.Repository), uploads: map[string]*registry.Upload{},
		begun: make(chan struct{}), done: make(chan struct{})}
	if err := c.addBlobs(s.maxBlob); err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	c.ctx, c.cancel = context.WithCancelCause(s.life)
	return c, nil
}

// Join adds the caller to those that wait for a copy: c, which then begins, or an equal one. The
// caller has to Leave it. The error is report.ErrBusy.
func (s *Copies) Join(c *Copy) (*Copy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same := s.copies[c.key]; same != nil && !same.Ended() && same.ctx.Err() == nil {
		same.callers++
		return same, nil
	}
	if len(s.copies) >= maxCopies {
		return nil, report.ErrBusy
	}
	select {
	case s.pending <- c:
	default:
		return nil, report.ErrBusy
	}
	c.callers++
	s.copies[c.key] = c
	return c, nil
}

// Leave ends a Join. The copy ends if nothing else waits for it.
func (s *Copies) Leave(c *Copy) {
	s.mu.Lock()
	c.callers--
	s.mu.Unlock()
	s.endUnwanted(c)
}

// EndUnwanted ends the copies to a name that no image and no caller waits for.
func (s *Copies) EndUnwanted(name string) {
	for _, c := range s.to(name) {
		s.endUnwanted(c)
	}
}

func (s *Copies) endUnwanted(c *Copy) {
	images, err := s.images.Waiting(s.life, c.key.name)
	if err != nil {
		return
	}
	for _, image := range images {
		if c.Brings(image.Digest) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.callers == 0 {
		c.cancel(errUnwanted)
	}
}

// to lists the copies to a name.
func (s *Copies) to(name string) (copies []*Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.copies {
		if key.name == name {
			copies = append(copies, c)
		}
	}
	return copies
}

// Supersede ends the copies to a name that are not of root, with the given cause.
func (s *Copies) Supersede(name, root string, cause error) {
	for _, c := range s.to(name) {
		if c.key.root == root {
			continue
		}
		s.Forget(c)
		s.images.Superseded(c)
		c.cancel(cause)
	}
}

// Forget removes a copy, unless another one has taken its place.
func (s *Copies) Forget(c *Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copies[c.key] == c {
		delete(s.copies, c.key)
	}
}

// Digests lists the manifests that copies bring to a name.
func (s *Copies) Digests(name string) (digests []string) {
	for _, c := range s.to(name) {
		if c.Ended() {
			continue
		}
		for _, m := range c.Members.Manifests {
			digests = append(digests, m.Digest)
		}
	}
	return digests
}

// Of returns the copy that brings an image, or nil. The copy may have just failed.
func (s *Copies) Of(image catalog.Image) *Copy {
	for _, c := range s.to(image.Name) {
		if c.Brings(image.Digest) {
			return c
		}
	}
	return nil
}

// run runs a copy from its place in the queue to its end.
func (s *Copies) run(c *Copy) {
	defer c.cancel(nil)
	err := s.copy(c)
	c.err = err
	close(c.done)
	for _, upload := range c.uploads {
		upload.End(err) // those that did not begin
	}
	if err == nil {
		s.Forget(c)
		s.images.CopyEnded(c)
		return
	}
	s.log.Info("image was not copied", "image", c.key.name, "err", report.Reason(err))
	if s.life.Err() == nil {
		s.images.CopyFailed(c, err)
	}
}

// copy waits for a slot and copies the image.
func (s *Copies) copy(c *Copy) error {
	if s.slots.Acquire(c.ctx, 1) != nil {
		return context.Cause(c.ctx)
	}
	defer s.slots.Release(1)
	close(c.begun)
	s.images.CopyBegun(c)
	ctx, stop := context.WithTimeoutCause(c.ctx, s.ImageTime, &report.TooLongError{Limit: s.ImageTime})
	defer stop()
	err := c.copyBlobs(ctx)
	if err == nil {
		err = s.images.Complete(ctx, c)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
