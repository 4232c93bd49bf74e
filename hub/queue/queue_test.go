package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/report"
	"lighter/wire"
)

// store is a queue in memory.
type store struct {
	mu     sync.Mutex
	images []catalog.Image
}

func (s *store) Next(_ context.Context, suits func(catalog.Image) bool) (catalog.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.images {
		if image := &s.images[i]; image.State == wire.StateQueued && suits(*image) {
			image.State = wire.StateActive
			return *image, nil
		}
	}
	return catalog.Image{}, catalog.ErrNotFound
}

func (s *store) all() []catalog.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.images)
}

// set changes the state of an active image.
func (s *store) set(n int64, state, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.images, func(i catalog.Image) bool { return i.N == n && i.State == wire.StateActive })
	if i < 0 {
		return catalog.ErrNotFound
	}
	s.images[i].State, s.images[i].Error = state, reason
	return nil
}

func (s *store) Release(_ context.Context, n int64) error { return s.set(n, wire.StateQueued, "") }

func (s *store) End(_ context.Context, n int64, state, reason string) error {
	return s.set(n, state, reason)
}

func (s *store) Numbered(_ context.Context, numbers []int64) (found []catalog.Image, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, image := range s.images {
		if slices.Contains(numbers, image.N) {
			found = append(found, image)
		}
	}
	return found, nil
}

// transfer is a copy that has begun, and ends when its channel is closed.
type transfer chan struct{}

func (transfer) Begun() bool { return true }

func (t transfer) Ended() bool {
	select {
	case <-t:
		return true
	default:
		return t == nil
	}
}

// images ingests by name: one that is being copied waits for that, others return their error.
type images struct {
	*store
	transfers map[string]transfer
	errs      map[string]error
	order     []string
}

func (i *images) Transfer(image catalog.Image) Transfer { return i.transfers[image.Name] }

func (i *images) Ingest(ctx context.Context, image catalog.Image, from Transfer, _ *report.Progress) error {
	i.order = append(i.order, image.Name)
	if t := from.(transfer); t != nil {
		select {
		case <-t:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := i.errs[image.Name]; err != nil {
		return err
	}
	return i.set(image.N, wire.StateReady, "")
}

func (i *images) Ready(context.Context, catalog.Image) {}
func (i *images) Finished(catalog.Image)               {}
func (i *images) BeforeNext(context.Context)           {}

// run runs the queue of these images while test runs. The copied names are being copied.
func run(t *testing.T, i *images, test func(t *testing.T, q *Queue), copied ...string) {
	synctest.Test(t, func(t *testing.T) {
		i.transfers = map[string]transfer{}
		for _, name := range copied {
			i.transfers[name] = make(transfer)
		}
		q := New(i.store, i, time.Hour, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		test(t, q)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
	})
}

func queued(names ...string) *store {
	s := &store{}
	for n, name := range names {
		s.images = append(s.images, catalog.Image{N: int64(n + 1), Name: name, State: wire.StateQueued})
	}
	return s
}

func TestImagesGetToTheirEnd(t *testing.T) {
	s := queued("good", "bad", "signature")
	i := &images{store: s, errs: map[string]error{
		"bad": errors.New("its blob is corrupt"), "signature": &oci.NotImageError{Why: "an artifact"}}}
	run(t, i, func(t *testing.T, q *Queue) {
		got, err := q.Await(t.Context(), s.all(), report.NewSender(nil))
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range []string{wire.StateReady, wire.StateFailed, wire.StateStored} {
			if got[n].State != want {
				t.Errorf("image %s is %s (%s), want %s", got[n].Name, got[n].State, got[n].Error, want)
			}
		}
	})
}

// An image that is still being copied makes room for one that has arrived.
func TestArrivedImageComesFirst(t *testing.T) {
	s := queued("copied")
	i := &images{store: s}
	run(t, i, func(t *testing.T, q *Queue) {
		synctest.Wait() // the copied image is active
		s.mu.Lock()
		s.images = append(s.images, catalog.Image{N: 2, Name: "pushed", State: wire.StateQueued})
		s.mu.Unlock()
		q.Arrived()
		synctest.Wait()
		close(i.transfers["copied"])
		if _, err := q.Await(t.Context(), s.all(), report.NewSender(nil)); err != nil {
			t.Fatal(err)
		}
	}, "copied")
	if want := []string{"copied", "pushed", "copied"}; !slices.Equal(i.order, want) {
		t.Errorf("ingested in the order %q, want %q", i.order, want)
	}
}

func TestRemovedImageEnds(t *testing.T) {
	s := queued("copied")
	i := &images{store: s}
	run(t, i, func(t *testing.T, q *Queue) {
		removed := s.all()
		synctest.Wait()
		s.mu.Lock()
		s.images = nil
		s.mu.Unlock()
		q.Removed(removed)
		if _, err := q.Await(t.Context(), removed, report.NewSender(nil)); err == nil {
			t.Error("Await of a removed image: got no error")
		}
	}, "copied")
}

func TestLongIngestionFails(t *testing.T) {
	s := queued("copied")
	i := &images{store: s}
	run(t, i, func(t *testing.T, q *Queue) {
		begin := time.Now()
		got, err := q.Await(t.Context(), s.all(), report.NewSender(nil))
		if err != nil || got[0].State != wire.StateFailed || time.Since(begin) < time.Hour {
			t.Errorf("after %v: %+v (%v), want failed after 1h", time.Since(begin), got, err)
		}
	}, "copied")
}
