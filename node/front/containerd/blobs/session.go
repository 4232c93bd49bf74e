package blobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
)

// Run makes links for the images that containerd has and gets, until ctx is done. If no namespace
// is configured, it removes the links of earlier daemons.
func (b *Blobs) Run(ctx context.Context) {
	if b.conn == nil || b.isOn() && !b.shown || !b.isOn() && b.stored.Contents == "" {
		return
	}
	s := newStore(b.conn)
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := b.session(ctx, s)
		if err == nil || ctx.Err() != nil {
			return
		}
		b.setProblem(err)
		if failures++; time.Since(began) > connectPauses.Most {
			failures = 1
		}
		if failures == quietFailures { // one line for a containerd that is away
			b.config.Log.Warn("containerd does not get the layers of lazy images now", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(connectPauses.After(failures)):
		case <-b.wake:
			failures = 0
		}
	}
}

// awaitSession waits until there is a session with containerd. The caller knows that containerd
// answers, so no pause between two attempts is waited for.
func (b *Blobs) awaitSession(ctx context.Context) error {
	b.mu.Lock()
	begun := b.begun
	b.mu.Unlock()
	select {
	case <-begun:
		return nil
	default:
	}
	b.conn.ResetConnectBackoff()
	select {
	case b.wake <- struct{}{}:
	default: // the next attempt does not wait either
	}
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginSession says that there is a session. The caller calls end at the session's end.
func (b *Blobs) beginSession() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.begun)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.begun = make(chan struct{})
	}
}

// session works with containerd until a request fails. It returns nil if there is nothing to do any
// more.
func (b *Blobs) session(ctx context.Context, s store) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.contents(ctx)
	if err != nil {
		return err
	}
	if !b.isOn() {
		if err := s.forget(ctx, in, nil); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(in.scratch()), os.Remove(storedFile(b.config.Root)))
	}
	if err := b.keepWhere(in); err != nil {
		return err
	}
	arrived, failed := s.events.Subscribe(ctx, `topic~="^/images/(create|update)$"`)
	b.setProblem(nil) // begin may find another one
	if err := b.begin(ctx, s, in); err != nil {
		return err
	}
	defer b.beginSession()()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		select {
		case event := <-arrived:
			b.handle(ctx, s, in, event)
		case err := <-failed:
			if err == nil {
				err = errors.New("containerd sends no more events")
			}
			return err
		case <-tick.C:
			if err := b.scan(ctx, s, in); err != nil {
				return err
			}
		}
	}
}

// begin removes what earlier daemons have left, and makes the links for all images.
func (b *Blobs) begin(ctx context.Context, s store, in contents) error {
	if b.cleaned != in { // else a layer may be in flight
		b.clean(in)
	}
	links, err := in.links()
	if err != nil {
		return err
	}
	for _, n := range links {
		if err := in.link(n, mountPoint(b.config.Root)); err != nil {
			return fmt.Errorf("renew the link of layer %s: %w", n.layer, err)
		}
	}
	if err := s.forget(ctx, in, b.config.Namespaces); err != nil {
		return err
	}
	return b.scan(ctx, s, in)
}

// handle makes the links for an image that was made or changed.
func (b *Blobs) handle(ctx context.Context, s store, in contents, event *events.Envelope) {
	if !slices.Contains(b.config.Namespaces, event.Namespace) {
		return
	}
	v, err := typeurl.UnmarshalAny(event.Event)
	if err != nil {
		b.config.Log.Warn("cannot decode an event of containerd", "topic", event.Topic, "err", err)
		return
	}
	var image string
	switch e := v.(type) {
	case *eventsapi.ImageCreate:
		image = e.Name
	case *eventsapi.ImageUpdate:
		image = e.Name
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, event.Namespace), requestTimeout)
	defer cancel()
	answer, err := s.images.Get(ctx, &imagesapi.GetImageRequest{Name: image})
	if err == nil {
		_, err = b.linkTarget(ctx, s, in, targetOf(answer.Image))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		b.config.Log.Warn("containerd cannot have all layers of an image", "image", image, "namespace", event.Namespace,
			"err", err)
	}
}
