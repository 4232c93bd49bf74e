package expiry

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/retention"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

// newService returns a service that has rules and runs no jobs. Its catalog has an image in each of
// these repositories.
func newService(t *testing.T, repositories ...string) *Service {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := catalogtest.Open(t, filepath.Join(t.TempDir(), "catalog.db"))
	for _, repository := range repositories {
		images := []catalog.Image{{Root: repository, Digest: repository, State: wire.StateStored}}
		if _, err := c.Name(t.Context(), repository+":1", images, catalog.Job{}); err != nil {
			t.Fatal(err)
		}
	}
	policy := retention.Policy{Rules: []retention.Rule{{Repositories: []string{"**"}}}}
	return New(policy, c, nil, jobs.NewRunner().Queue(c.Jobs, "owner", log), log)
}

// confirmedBy returns what a job confirms.
func confirmedBy(t *testing.T, j catalog.Job) []string {
	t.Helper()
	var w work
	if err := json.Unmarshal(j.Payload, &w); err != nil {
		t.Fatal(err)
	}
	return w.Confirmed
}

// A job keeps its confirmations when further jobs are requested, with others or with none. One that
// is to be cancelled loses them, and so does one that has ended.
func TestConfirmationsAreKept(t *testing.T) {
	t.Parallel()
	s := newService(t, "a", "b")
	claim := func() catalog.Lease {
		t.Helper()
		j, err := s.catalog.Jobs.Claim(t.Context(), "x", []catalog.Slot{{Kind: JobKind}}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return j.Lease()
	}
	want := func(request string, confirm, confirmed []string) catalog.Job {
		t.Helper()
		j, err := s.Start(t.Context(), confirm)
		if err != nil {
			t.Fatal(err)
		}
		if got := confirmedBy(t, j); !slices.Equal(got, confirmed) || j.Request != request {
			t.Errorf("after a confirmation of %q: the job confirms %q, and is asked %q; want %q and %q",
				confirm, got, j.Request, confirmed, request)
		}
		return j
	}
	want("", []string{"b"}, []string{"b"})
	want("", nil, []string{"b"})
	running := claim()
	want(wire.JobAgain, nil, []string{"b"})
	want(wire.JobAgain, []string{"b"}, []string{"b"})
	j := want(wire.JobRestart, []string{"a"}, []string{"a", "b"})
	if _, err := s.catalog.Jobs.Cancel(t.Context(), j.N); err != nil {
		t.Fatal(err)
	}
	want(wire.JobRestart, nil, nil)
	want(wire.JobRestart, []string{"a"}, []string{"a"})
	done := catalog.Outcome{State: wire.JobDone}
	if _, err := s.catalog.Jobs.End(t.Context(), running, done); err != nil { // it is queued again
		t.Fatal(err)
	}
	if _, err := s.catalog.Jobs.End(t.Context(), claim(), done); err != nil {
		t.Fatal(err)
	}
	want("", nil, nil)
}

// Confirmations of several repositories at the same moment are all kept.
func TestConfirmationsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	var repositories []string
	for n := range 20 {
		repositories = append(repositories, fmt.Sprintf("a%02d", n))
	}
	s := newService(t, repositories...)
	var all sync.WaitGroup
	for _, repository := range repositories {
		all.Go(func() {
			if _, err := s.Start(t.Context(), []string{repository}); err != nil {
				t.Errorf("confirm %s: %v", repository, err)
			}
		})
	}
	all.Wait()
	j, err := s.catalog.Jobs.Open(t.Context(), JobKind, jobKey)
	if err != nil {
		t.Fatal(err)
	}
	if got := confirmedBy(t, j); !slices.Equal(got, repositories) {
		t.Errorf("the job confirms %q, want %q", got, repositories)
	}
}
