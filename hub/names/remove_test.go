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

// newRemovable returns a service that has the name. run makes it run its jobs.
func newRemovable(t *testing.T) (s *Service, run func()) {
	t.Helper()
	s = newService(t)
	pushIndex(t, s.registry.Repository(removable.Repository), removable.Tag)
	if err := s.Pushed(t.Context(), removable.Repository, removable.Tag); err != nil {
		t.Fatal(err)
	}
	return s, func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.jobs.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
	}
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

// removing calls Remove, and returns the removal's job when it has a state.
func removing(t *testing.T, s *Service, state string) (j catalog.Job, ended <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Remove(t.Context(), removable.Name()) }()
	return awaitRemovalJob(t, s, state), done
}

// awaitRemovalJob waits until there is a removal's job that has a state.
func awaitRemovalJob(t *testing.T, s *Service, state string) catalog.Job {
	t.Helper()
	for range 6000 {
		j, err := s.catalog.Jobs.Open(t.Context(), jobKind, removable.Name())
		if err == nil && j.State == state && strings.Contains(string(j.Payload), "remove") {
			return j
		}
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no removal of %s is %s after a minute", removable.Name(), state)
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

// The digest of a tagged image is no name of it. The error says which names the image has.
func TestRemovalByDigest(t *testing.T) {
	t.Parallel()
	s, run := newRemovable(t)
	run()
	m := pushIndex(t, s.registry.Repository(removable.Repository), "2")
	if err := s.Pushed(t.Context(), removable.Repository, "2"); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[wire.Ref]string{
		{Repository: "a", Digest: m.Digest}:                            "is named a:2: remove each of its names",
		{Repository: "b", Digest: m.Digest}:                            "not found",
		{Repository: "a", Digest: "sha256:" + strings.Repeat("0", 64)}: "not found",
	} {
		err := s.Remove(t.Context(), ref.Name())
		if !errors.Is(err, catalog.ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("remove %s: %v, want an error with %q", ref.Name(), err, want)
		}
	}
	if !isListed(t, s) {
		t.Error("an image was removed by its digest")
	}
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
			s, run := newRemovable(t)
			run()
			release := holdRemoval(t, s)
			j, ended := removing(t, s, wire.JobRunning)
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

// A push that is refused while a removal waits or runs replaces the removal's job. The removal is
// requested again, until the name is gone. If a push is accepted meanwhile, the name stays.
func TestRemovalBesideRefusedPushes(t *testing.T) {
	t.Parallel()
	refused := func(*testing.T, *Service) {}
	accepted := func(t *testing.T, s *Service) {
		if err := s.Pushed(t.Context(), removable.Repository, removable.Tag); err != nil {
			t.Error(err)
		}
	}
	for what, c := range map[string]struct {
		state  string // of the removal's job when the pushes come
		push   func(*testing.T, *Service)
		pushes int  // that come before the removal can go on
		stays  bool // the name
		want   error
	}{
		"refused before it runs":  {wire.JobQueued, refused, 1, false, nil},
		"refused while it runs":   {wire.JobRunning, refused, 2, false, nil},
		"refused too often":       {wire.JobRunning, refused, maxRemovals, true, report.ErrBusy},
		"accepted before it runs": {wire.JobQueued, accepted, 1, true, nil},
		"accepted while it runs":  {wire.JobRunning, accepted, 1, true, nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, release := newRemovable(t)
			if c.state == wire.JobRunning {
				release()
				release = holdRemoval(t, s)
			}
			_, ended := removing(t, s, c.state)
			for n := 1; n <= c.pushes; n++ {
				awaitRemovalJob(t, s, c.state)
				settled, err := s.Changing(t.Context(), removable.Repository, removable.Tag)
				if err != nil {
					t.Fatal(err)
				}
				if n == c.pushes {
					release()
				}
				c.push(t, s)
				settled()
			}
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("the removal ended with %v, want %v", err, c.want)
			}
			if isListed(t, s) != c.stays {
				t.Errorf("the name is listed: %t, want %t", !c.stays, c.stays)
			}
		})
	}
}
