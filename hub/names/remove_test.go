package names

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// removable is the name that the tests of this file remove.
var removable = wire.Ref{Repository: "a", Tag: "1"}

// newRemovable returns a service that runs its jobs, and has the name.
func newRemovable(t *testing.T) *Service {
	t.Helper()
	s := newService(t)
	pushIndex(t, s.registry.Repository(removable.Repository), removable.Tag)
	if err := s.Pushed(t.Context(), removable.Repository, removable.Tag); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.jobs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return s
}

// holdRemoval makes removals of the name wait until release is called, as while another process
// deletes its tag.
func holdRemoval(t *testing.T, s *Service) (release func()) {
	t.Helper()
	tag := registry.TagKey(removable.Repository, removable.Tag)
	d, may, err := s.catalog.Blobs.BeginAny(t.Context(), tag, time.Hour)
	if err != nil || !may {
		t.Fatalf("lock the tag: %t, %v", may, err)
	}
	return func() {
		if err := s.catalog.Blobs.End(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
}

// start calls remove, and returns the job of the removal when it runs.
func start(t *testing.T, s *Service, remove func() error) (j catalog.Job, ended <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- remove() }()
	return awaitJob(t, s, wire.JobRunning), done
}

// awaitJob waits until the open job of the name has a state.
func awaitJob(t *testing.T, s *Service, state string) catalog.Job {
	t.Helper()
	for range 6000 {
		j, err := s.catalog.Jobs.Open(t.Context(), jobKind, removable.Name())
		if err == nil && j.State == state {
			return j
		}
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no job of %s is %s after a minute", removable.Name(), state)
	return catalog.Job{}
}

// isListed reports whether catalog and registry have the name. It fails the test if they differ.
func isListed(t *testing.T, s *Service) bool {
	t.Helper()
	images, err := s.catalog.Images(t.Context(), removable.Name())
	if err != nil {
		t.Fatal(err)
	}
	has, err := s.registry.Repository(removable.Repository).HasTag(t.Context(), removable.Tag)
	if err != nil || has != (len(images) > 0) {
		t.Fatalf("the registry has the tag: %t (%v); the catalog has %d images", has, err, len(images))
	}
	return has
}

// A removal that is paused or cancelled at another process has not removed the name, even if its
// worker finds the request before its queue does. A paused one goes on when it is retried.
func TestInterruptedRemoval(t *testing.T) {
	t.Parallel()
	for state, request := range map[string]func(*catalog.Jobs, context.Context, int64) (string, error){
		wire.JobPaused: (*catalog.Jobs).Pause, wire.JobCancelled: (*catalog.Jobs).Cancel,
	} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			s := newRemovable(t)
			release := holdRemoval(t, s)
			j, ended := start(t, s, func() error { return s.Remove(t.Context(), removable.Name()) })
			if _, err := request(s.catalog.Jobs, t.Context(), j.N); err != nil {
				t.Fatal(err)
			}
			release()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), state) {
				t.Errorf("the removal ended with %v, want an error: it is %s", err, state)
			}
			if j, err := s.catalog.Jobs.Get(t.Context(), j.N); err != nil || j.State != state {
				t.Errorf("the job is %s (%v), want %s", j.State, err, state)
			}
			if !isListed(t, s) {
				t.Error("the name was removed")
			}
			if state != wire.JobPaused {
				return
			}
			if _, err := s.jobs.Retry(t.Context(), j.N); err != nil {
				t.Fatal(err)
			}
			silent := report.NewSender(func(wire.Progress) error { return nil })
			if _, err := s.jobs.AwaitEnd(t.Context(), jobKind, removable.Name(), j.N, silent); err != nil {
				t.Errorf("the removal that goes on: %v", err)
			}
			if isListed(t, s) {
				t.Error("the name is listed after the removal has gone on")
			}
		})
	}
}
