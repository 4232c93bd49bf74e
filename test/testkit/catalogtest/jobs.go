package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

const (
	kind = "image"
	long = time.Hour // a lease that does not end during a test
)

var slots = []catalog.Slot{{Kind: kind}}

func addJob(t *testing.T, c *catalog.Catalog, j catalog.Job, delay time.Duration) int64 {
	t.Helper()
	n, err := c.Jobs.Add(t.Context(), j, delay)
	must(t, err)
	return n
}

func claim(t *testing.T, c *catalog.Catalog, owner, key string) catalog.Job {
	t.Helper()
	j, err := c.Jobs.Claim(t.Context(), owner, slots, long)
	if err != nil || j.Key != key || j.State != wire.JobRunning || j.Owner != owner {
		t.Fatalf("claimed %+v, %v, want %s", j, err, key)
	}
	return j
}

func wantNoJob(t *testing.T, c *catalog.Catalog, slots []catalog.Slot) {
	t.Helper()
	if j, err := c.Jobs.Claim(t.Context(), "nobody", slots, long); !errors.Is(err, catalog.ErrNotFound) {
		t.Fatalf("claimed %+v, %v, want ErrNotFound", j, err)
	}
}

func end(t *testing.T, c *catalog.Catalog, j catalog.Job, o catalog.Outcome, want string) {
	t.Helper()
	if state, err := c.Jobs.End(t.Context(), j.Lease(), o); err != nil || state != want {
		t.Fatalf("ended job %s: %s, %v, want %s", j.Key, state, err, want)
	}
}

// lose ends the lease of a job's worker.
func lose(t *testing.T, c *catalog.Catalog, j catalog.Job) {
	t.Helper()
	must(t, errorOf(c.Jobs.Extend(t.Context(), j.Lease(), -time.Second, nil)))
}

// Jobs run in order of their priority, and those with equal priority in order of their time.
func testJobOrder(t *testing.T, c *catalog.Catalog) {
	addJob(t, c, catalog.Job{Kind: kind, Key: "first", Payload: []byte("x"), Secret: []byte("s")}, 0)
	addJob(t, c, catalog.Job{Kind: kind, Key: "later"}, long)
	addJob(t, c, catalog.Job{Kind: kind, Key: "second"}, 0)
	addJob(t, c, catalog.Job{Kind: kind, Key: "urgent", Priority: 1}, 0)
	addJob(t, c, catalog.Job{Kind: "other", Key: "first", Priority: 2}, 0)
	wantNoJob(t, c, nil)
	wantNoJob(t, c, []catalog.Slot{{Kind: kind, Priority: 2}, {Kind: "third"}})
	claim(t, c, "a", "urgent")
	first := claim(t, c, "a", "first")
	if string(first.Payload) != "x" || string(first.Secret) != "s" || first.Attempts != 1 {
		t.Errorf("claimed %+v, want the payload x, the secret s and attempt 1", first)
	}
	claim(t, c, "a", "second")
	c.ObserveCommits(func(context.Context, string, bool) {
		t.Error("Claim without a job that can run has made a transaction, want none")
	})
	wantNoJob(t, c, slots)
	c.ObserveCommits(func(context.Context, string, bool) {})
	open, err := c.Jobs.List(t.Context(), false, 3)
	if err != nil || len(open) != 3 || open[0].Key != "urgent" || open[0].State != wire.JobRunning {
		t.Errorf("open jobs: got %+v (%v), want three, the running job urgent first", open, err)
	}
	counts, err := c.Jobs.Count(t.Context())
	if err != nil || counts[[2]string{kind, wire.JobRunning}] != 3 || counts[[2]string{kind, wire.JobQueued}] != 1 ||
		counts[[2]string{"other", wire.JobQueued}] != 1 {
		t.Errorf("counts: got %v (%v), want 3 running and 1 queued, and 1 queued of another kind", counts, err)
	}
	// An ended job is no longer open, and has lost its secret.
	end(t, c, first, catalog.Outcome{State: wire.JobFailed, Error: "reason"}, wire.JobFailed)
	if j, err := c.Jobs.Get(t.Context(), first.N); err != nil || j.Error != "reason" || len(j.Secret) > 0 ||
		string(j.Payload) != "x" {
		t.Errorf("ended job: got %+v (%v), want the error reason, the payload x and no secret", j, err)
	}
	if _, err := c.Jobs.Open(t.Context(), kind, "first"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("look up an ended job among the open ones: %v, want ErrNotFound", err)
	}
	if ended, err := c.Jobs.List(t.Context(), true, 10); err != nil || len(ended) != 1 || ended[0].N != first.N {
		t.Errorf("ended jobs: got %+v (%v), want only job %d", ended, err, first.N)
	}
	if n, err := c.Jobs.Forget(t.Context(), long, 10); err != nil || n != 0 {
		t.Errorf("forgot %d jobs that ended within the hour (%v), want none", n, err)
	}
	if n, err := c.Jobs.Forget(t.Context(), -long, 10); err != nil || n != 1 {
		t.Errorf("forgot %d old jobs, %v, want 1", n, err)
	}
}

// The payload of a job can depend on that of the open job. Requests at the same moment see each
// other, also if the first of them adds the job.
func testMergedJobs(t *testing.T, c *catalog.Catalog) {
	const requests = 8
	request := func(merge func(catalog.Job) ([]byte, error)) error {
		return errorOf(c.Jobs.AddMerged(t.Context(), catalog.Job{Kind: kind, Key: "a"}, merge))
	}
	appended := func(open catalog.Job) ([]byte, error) { return append(open.Payload, 'x'), nil }
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			if err := request(appended); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if j := claim(t, c, "x", "a"); len(j.Payload) != requests {
		t.Errorf("the payload is %q after %d requests", j.Payload, requests)
	}
	refused := errors.New("refused")
	if err := request(func(catalog.Job) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("a request whose merge fails: %v, want its error", err)
	}
	if j, err := c.Jobs.Open(t.Context(), kind, "a"); err != nil || j.Request != "" {
		t.Errorf("after a request whose merge fails, the job is %+v, %v, want it unchanged", j, err)
	}
}

// A kind and key has at most one open job. A running job that is added again runs a second time.
func testOneOpenJob(t *testing.T, c *catalog.Catalog) {
	n := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("1")}, long)
	if again := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("2"), Priority: 1}, 0); again != n {
		t.Errorf("added a queued job again: got job %d, want %d", again, n)
	}
	j := claim(t, c, "x", "a")
	if string(j.Payload) != "2" || j.Priority != 1 {
		t.Errorf("claimed %+v, want the last payload and the highest priority", j)
	}
	if again := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("3")}, 0); again != n {
		t.Errorf("added a running job again: got job %d, want %d", again, n)
	}
	wantNoJob(t, c, slots)
	if request, err := c.Jobs.Extend(t.Context(), j.Lease(), long, nil); err != nil || request != wire.JobRestart {
		t.Errorf("request %q, %v, want restart", request, err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "old"}, wire.JobQueued)
	if j = claim(t, c, "x", "a"); string(j.Payload) != "3" || j.Attempts != 1 {
		t.Errorf("claimed again %+v, want the payload 3 and attempt 1", j)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	if next := addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0); next == n {
		t.Error("an ended job was opened again")
	}
}

// If several workers claim jobs at the same time, each job is given to one worker.
func testContention(t *testing.T, c *catalog.Catalog) {
	const jobs, workers = 40, 8
	for i := range jobs {
		addJob(t, c, catalog.Job{Kind: kind, Key: fmt.Sprint(i)}, 0)
	}
	var mu sync.Mutex
	given := map[string]int{}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for {
				j, err := c.Jobs.Claim(t.Context(), fmt.Sprint(w), slots, long)
				if errors.Is(err, catalog.ErrNotFound) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				given[j.Key]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(given) != jobs {
		t.Errorf("%d jobs were given to workers, want %d", len(given), jobs)
	}
	for key, times := range given {
		if times != 1 {
			t.Errorf("job %s was given to %d workers", key, times)
		}
	}
}

// A periodic job is queued once in each interval, however many processes call AddDue at the same
// time, and whatever the outcome of the previous job was. It is not queued while the previous job
// is paused.
func testDueJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	waits := false
	add := func(every time.Duration) bool {
		t.Helper()
		queued, after, err := c.Jobs.AddDue(ctx, catalog.Job{Kind: kind, Key: "daily"}, every)
		must(t, err)
		if (after > 0) != waits || waits && after > every {
			t.Errorf("the next job is due after %v; want more than 0, and at most %v: %t", after, every, waits)
		}
		return queued
	}
	for _, outcome := range []string{wire.JobDone, wire.JobFailed, wire.JobCancelled} {
		var all sync.WaitGroup
		queued := atomic.Int64{}
		for range 12 {
			all.Go(func() {
				if is, _, err := c.Jobs.AddDue(ctx, catalog.Job{Kind: kind, Key: "daily"}, -time.Hour); err != nil {
					t.Error(err)
				} else if is {
					queued.Add(1)
				}
			})
		}
		all.Wait()
		if queued.Load() != 1 || add(-time.Hour) {
			t.Errorf("queued %d times at once, or again while it is open; want once", queued.Load())
		}
		j := claim(t, c, "worker", "daily")
		if add(-time.Hour) || j.Request != "" {
			t.Error("queued again while it is running")
		}
		if again, err := c.Jobs.Get(ctx, j.N); err != nil || again.Request != "" {
			t.Errorf("the running job is to run again: %+v, %v", again, err)
		}
		end(t, c, j, catalog.Outcome{State: outcome}, outcome)
		waits = true
		if add(time.Hour) {
			t.Errorf("queued again before the interval has passed since the state %s of the previous job", outcome)
		}
		waits = false
	}
	if !add(-time.Hour) {
		t.Error("not queued again after the interval")
	}
	open, err := c.Jobs.Open(ctx, kind, "daily")
	must(t, err)
	if _, err := c.Jobs.Pause(ctx, open.N); err != nil || add(-time.Hour) {
		t.Errorf("queued while the previous job is paused (%v)", err)
	}
	if other, _, err := c.Jobs.AddDue(ctx, catalog.Job{Kind: kind, Key: "other"}, time.Hour); err != nil || !other {
		t.Errorf("whether a job with another key is queued: got %t (%v), want true", other, err)
	}
}
