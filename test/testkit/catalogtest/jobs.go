package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Jobs run by priority, then by time.
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
		t.Errorf("claimed %+v", first)
	}
	claim(t, c, "a", "second")
	c.ObserveCommits(func(context.Context, string, bool) { t.Error("a look for jobs that finds none is a transaction") })
	wantNoJob(t, c, slots)
	c.ObserveCommits(func(context.Context, string, bool) {})
	open, err := c.Jobs.List(t.Context(), false, 3)
	if err != nil || len(open) != 3 || open[0].Key != "urgent" || open[0].State != wire.JobRunning {
		t.Errorf("open jobs %+v, %v", open, err)
	}
	counts, err := c.Jobs.Count(t.Context())
	if err != nil || counts[[2]string{kind, wire.JobRunning}] != 3 || counts[[2]string{kind, wire.JobQueued}] != 1 ||
		counts[[2]string{"other", wire.JobQueued}] != 1 {
		t.Errorf("counts %v, %v", counts, err)
	}
	// An ended job is no longer open, and has lost its secret.
	end(t, c, first, catalog.Outcome{State: wire.JobFailed, Error: "reason"}, wire.JobFailed)
	if j, err := c.Jobs.Get(t.Context(), first.N); err != nil || j.Error != "reason" || len(j.Secret) > 0 ||
		string(j.Payload) != "x" {
		t.Errorf("ended job %+v, %v", j, err)
	}
	if _, err := c.Jobs.Open(t.Context(), kind, "first"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("open job: %v, want ErrNotFound", err)
	}
	if ended, err := c.Jobs.List(t.Context(), true, 10); err != nil || len(ended) != 1 || ended[0].N != first.N {
		t.Errorf("ended jobs %+v, %v", ended, err)
	}
	if n, err := c.Jobs.Forget(t.Context(), long, 10); err != nil || n != 0 {
		t.Errorf("forgot %d young jobs, %v", n, err)
	}
	if n, err := c.Jobs.Forget(t.Context(), -long, 10); err != nil || n != 1 {
		t.Errorf("forgot %d old jobs, %v, want 1", n, err)
	}
}

// There is one open job of a kind and key. A running job that is requested again runs a second
// time.
func testOneOpenJob(t *testing.T, c *catalog.Catalog) {
	n := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("1")}, long)
	if again := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("2"), Priority: 1}, 0); again != n {
		t.Errorf("a second job %d beside %d", again, n)
	}
	j := claim(t, c, "x", "a")
	if string(j.Payload) != "2" || j.Priority != 1 {
		t.Errorf("claimed %+v, want the last payload and the highest priority", j)
	}
	if again := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Payload: []byte("3")}, 0); again != n {
		t.Errorf("a second job %d beside %d, which runs", again, n)
	}
	wantNoJob(t, c, slots)
	if request, err := c.Jobs.Extend(t.Context(), j.Lease(), long, nil); err != nil || request != wire.JobRestart {
		t.Errorf("request %q, %v, want restart", request, err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "old"}, wire.JobQueued)
	if j = claim(t, c, "x", "a"); string(j.Payload) != "3" || j.Attempts != 1 {
		t.Errorf("claimed again %+v", j)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	if next := addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0); next == n {
		t.Error("an ended job was opened again")
	}
}

// Each job is given to one worker.
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

// When a lease has ended, another worker gets the job, and the first one can change nothing.
func testLeases(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0)
	first := claim(t, c, "x", "a")
	if _, err := c.Jobs.Extend(ctx, first.Lease(), long, []byte("half")); err != nil {
		t.Fatal(err)
	}
	if open, err := c.Jobs.Open(ctx, kind, "a"); err != nil || string(open.Progress) != "half" {
		t.Errorf("open job %+v, %v", open, err)
	}
	wantNoJob(t, c, slots)
	if _, err := c.Jobs.Extend(ctx, first.Lease(), -time.Second, nil); err != nil {
		t.Fatal(err)
	}
	second := claim(t, c, "y", "a")
	if second.Attempts != 2 || second.Fence <= first.Fence {
		t.Errorf("claimed %+v after %+v", second, first)
	}
	name := []catalog.Image{queued("a")}
	now, _, err := c.Expect(ctx, name, "example.org/a", "superseded", catalog.Job{Kind: "other", Key: "a"})
	must(t, err)
	p := publication(t, c, catalog.Image{N: now[0].N, Name: "a"}, "x")
	p.Lease = first.Lease()
	for what, err := range map[string]error{
		"extend":  errorOf(c.Jobs.Extend(ctx, first.Lease(), long, nil)),
		"end":     errorOf(c.Jobs.End(ctx, first.Lease(), catalog.Outcome{State: wire.JobDone})),
		"begin":   c.Begin(ctx, first.Lease(), now[0].N),
		"state":   c.End(ctx, first.Lease(), now[0].N, wire.StateFailed, "late"),
		"name":    c.NameAs(ctx, first.Lease(), "a", name),
		"publish": c.Publish(ctx, p),
		"layer":   errorOf(c.Jobs.ClaimLayer(ctx, first.Lease(), "x")),
	} {
		if !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s without the lease: %v, want ErrLost", what, err)
		}
	}
	if got := states(t, c, "a"); got != "a a queued;" {
		t.Errorf("the image: %s, want it queued", got)
	}
	must(t, c.Begin(ctx, second.Lease(), now[0].N))
	p.Lease = second.Lease()
	must(t, c.Publish(ctx, p))
	end(t, c, second, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	// An interrupted attempt does not count, and a restarted process gets its jobs back at once.
	addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	end(t, c, claim(t, c, "x", "b"), catalog.Outcome{State: wire.JobQueued, Uncounted: true}, wire.JobQueued)
	if j := claim(t, c, "x", "b"); j.Attempts != 1 {
		t.Errorf("attempt %d, want 1", j.Attempts)
	}
	must(t, c.Jobs.DropLeases(ctx, "y"))
	wantNoJob(t, c, slots)
	must(t, c.Jobs.DropLeases(ctx, "x"))
	if j := claim(t, c, "x", "b"); j.Attempts != 1 { // x goes on: no further attempt
		t.Errorf("attempt %d, want 1", j.Attempts)
	}
	must(t, c.Jobs.DropLeases(ctx, "x"))
	if j := claim(t, c, "z", "b"); j.Attempts != 2 {
		t.Errorf("attempt %d, want 2", j.Attempts)
	}
}

// Attempts count from 1, also when a worker loses a job that was requested again, and gets it back.
func testAttempts(t *testing.T, c *catalog.Catalog) {
	job := catalog.Job{Kind: kind, Key: "a"}
	addJob(t, c, job, 0)
	lose := func(j catalog.Job) { must(t, errorOf(c.Jobs.Extend(t.Context(), j.Lease(), -time.Second, nil))) }
	j := claim(t, c, "x", "a")
	addJob(t, c, job, 0) // while it runs
	lose(j)
	if j = claim(t, c, "x", "a"); j.Attempts != 1 {
		t.Errorf("attempt %d, want 1", j.Attempts)
	}
	lose(j)
	wantNoJob(t, c, []catalog.Slot{{Kind: "other"}}) // it is queued again
	addJob(t, c, job, 0)
	if j = claim(t, c, "x", "a"); j.Attempts != 1 {
		t.Errorf("attempt %d of a job that was requested while it was queued, want 1", j.Attempts)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// Jobs are cancelled, paused and resumed, whether they run or not.
func testJobRequests(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	n := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Secret: []byte("s")}, 0)
	if state, err := c.Jobs.Pause(ctx, n); err != nil || state != wire.JobPaused {
		t.Fatalf("paused: %s, %v", state, err)
	}
	wantNoJob(t, c, slots)
	addJob(t, c, catalog.Job{Kind: kind, Key: "a", Secret: []byte("s")}, 0) // it stays paused
	wantNoJob(t, c, slots)
	must(t, c.Jobs.Retry(ctx, n))
	j := claim(t, c, "x", "a")
	again := func(payload string, byUser bool) func() (string, error) {
		return func() (string, error) {
			_, err := c.Jobs.Add(ctx, catalog.Job{Kind: kind, Key: "a", Payload: []byte(payload), ByUser: byUser}, 0)
			return wire.JobRunning, err
		}
	}
	pause := func() (string, error) { return c.Jobs.Pause(ctx, n) }
	cancel := func() (string, error) { return c.Jobs.Cancel(ctx, n) }
	retry := func() (string, error) { return wire.JobRunning, c.Jobs.Retry(ctx, n) }
	for i, step := range []struct {
		ask  func() (string, error)
		want string
	}{
		{pause, wire.JobPause}, {retry, wire.JobAgain}, {pause, wire.JobPauseAgain}, {pause, wire.JobPauseAgain},
		{again("", false), wire.JobPauseAgain}, {again("", true), wire.JobAgain}, {again("", false), wire.JobAgain},
		{again("other", false), wire.JobRestart}, {again("other", true), wire.JobRestart}, {cancel, wire.JobCancel},
		{pause, wire.JobCancel}, {again("other", false), wire.JobRestart}, {cancel, wire.JobCancel},
	} { // the last request counts, although the worker has gone
		if state, err := step.ask(); err != nil || state != wire.JobRunning {
			t.Errorf("request %d of a running job: %s, %v", i, state, err)
		}
		if request, err := c.Jobs.Extend(ctx, j.Lease(), long, nil); err != nil || request != step.want {
			t.Errorf("request %d: %q, %v, want %s", i, request, err, step.want)
		}
	}
	if _, err := c.Jobs.Extend(ctx, j.Lease(), -time.Second, nil); err != nil {
		t.Fatal(err)
	}
	wantNoJob(t, c, slots)
	if j, err := c.Jobs.Get(ctx, n); err != nil || j.State != wire.JobCancelled {
		t.Errorf("job %+v, %v, want it cancelled", j, err)
	}
	if _, err := c.Jobs.Cancel(ctx, n); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("cancelled an ended job: %v", err)
	}
	must(t, c.Jobs.Retry(ctx, n))
	claim(t, c, "x", "a")
	if err := c.Jobs.Retry(ctx, n); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("retried a running job: %v", err)
	}
}

// A request for a paused job makes it run only if it comes from a user. A job that was requested
// while it was asked to pause does not end with that attempt.
func testPausedJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	job := catalog.Job{Kind: kind, Key: "a", Payload: []byte("1")}
	n := addJob(t, c, job, 0)
	pause := func() {
		t.Helper()
		if _, err := c.Jobs.Pause(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	pause()
	addJob(t, c, job, 0)
	wantNoJob(t, c, slots)
	job.ByUser = true
	addJob(t, c, job, 0)
	j := claim(t, c, "x", "a")
	pause()
	job.ByUser = false
	addJob(t, c, job, 0)
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobPaused)
	must(t, c.Jobs.Retry(ctx, n))
	j = claim(t, c, "x", "a")
	pause()
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
}

// A job that has ended, or was paused for long, loses its secret. The catalog knows that the job
// had one.
func testSecrets(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	want := func(n int64, secret string, gone bool) {
		t.Helper()
		j, err := c.Jobs.Get(ctx, n)
		if err != nil || string(j.Secret) != secret || j.Unsealed.IsZero() == gone {
			t.Errorf("job %+v, %v, want the secret %q, gone: %v", j, err, secret, gone)
		}
	}
	job := catalog.Job{Kind: kind, Key: "a", Secret: []byte("sealed")}
	n := addJob(t, c, job, 0)
	if _, err := c.Jobs.Pause(ctx, n); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Jobs.Forget(ctx, long, 10); err != nil {
		t.Fatal(err)
	}
	want(n, "sealed", false)
	if _, err := c.Jobs.Forget(ctx, -long, 10); err != nil {
		t.Fatal(err)
	}
	want(n, "", true)
	addJob(t, c, job, 0)
	want(n, "sealed", false)
	must(t, c.Jobs.Retry(ctx, n))
	end(t, c, claim(t, c, "x", "a"), catalog.Outcome{State: wire.JobFailed}, wire.JobFailed)
	want(n, "", true)
	n = addJob(t, c, job, 0)
	if _, err := c.Jobs.Cancel(ctx, n); err != nil {
		t.Fatal(err)
	}
	want(n, "", true)
	n = addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	end(t, c, claim(t, c, "x", "b"), catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	want(n, "", false)
}

// A job is withdrawn only if nobody else has added or claimed it. Otherwise it runs afterwards.
func testWithdrawnJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	one := catalog.Job{Kind: kind, Key: "a", Payload: []byte("1"), Postpones: true}
	two := catalog.Job{Kind: kind, Key: "a", Payload: []byte("2"), Postpones: true}
	n := addJob(t, c, one, 0)
	addJob(t, c, one, long)
	wantNoJob(t, c, slots) // it waits again
	withdraw := func(j catalog.Job, want bool) {
		t.Helper()
		if lasted, err := c.Jobs.Withdraw(ctx, j); err != nil || lasted != want {
			t.Errorf("withdrawn: %t, %v; want %t", lasted, err, want)
		}
	}
	withdraw(one, true)
	if _, err := c.Jobs.Get(ctx, n); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("a withdrawn job: %v, want ErrNotFound", err)
	}
	addJob(t, c, one, long)
	addJob(t, c, two, long)
	withdraw(one, false)
	j := claim(t, c, "x", "a")
	withdraw(two, true) // it runs once more
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobQueued)
	end(t, c, claim(t, c, "x", "a"), catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	withdraw(two, false) // it ran in between
	end(t, c, claim(t, c, "x", "a"), catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	addJob(t, c, one, long)
	must(t, c.Jobs.Hurry(ctx, "other"))
	wantNoJob(t, c, slots)
	must(t, c.Jobs.Hurry(ctx, kind))
	claim(t, c, "x", "a")
	addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, long)
	addJob(t, c, catalog.Job{Kind: "other", Key: "c"}, long)
	open, err := c.Jobs.OpenOf(ctx, kind)
	slices.SortFunc(open, func(a, b catalog.Job) int { return strings.Compare(a.Key, b.Key) })
	if err != nil || len(open) != 2 || open[0].Key != "a" || string(open[0].Payload) != "1" || open[1].Key != "b" {
		t.Errorf("open jobs of the kind: %+v, %v, want a and b", open, err)
	}
}

// The worker of a job about a name changes the name only if the job was not added again, and has
// no other owner.
func testNamesByJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	const about = "name"
	add := func(payload string) {
		t.Helper()
		addJob(t, c, catalog.Job{Kind: about, Key: "a", Payload: []byte(payload)}, 0)
	}
	claimed := func() catalog.Lease {
		t.Helper()
		j, err := c.Jobs.Claim(ctx, "x", []catalog.Slot{{Kind: about}}, long)
		must(t, err)
		return j.Lease()
	}
	change := func(l catalog.Lease, want error) {
		t.Helper()
		if _, err := c.NameBy(ctx, l, "a", []catalog.Image{queued("1")}, jobOf("a")); !errors.Is(err, want) {
			t.Errorf("named: %v, want %v", err, want)
		}
		if err := c.RemoveBy(ctx, l, kind, "a", ""); !errors.Is(err, want) {
			t.Errorf("removed: %v, want %v", err, want)
		}
	}
	add("1")
	first := claimed()
	change(first, nil)
	add("2")
	change(first, catalog.ErrLost)
	_, err := c.Jobs.End(ctx, first, catalog.Outcome{State: wire.JobDone})
	must(t, err)
	second := claimed()
	change(first, catalog.ErrLost)
	change(second, nil)
	change(catalog.Lease{}, nil) // a request has no job
}

// A layer is split by one worker.
func testClaims(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0)
	addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	a, b := claim(t, c, "x", "a"), claim(t, c, "y", "b")
	expect := func(j catalog.Job, layer string, want bool) {
		t.Helper()
		if claimed, err := c.Jobs.ClaimLayer(ctx, j.Lease(), layer); err != nil || claimed != want {
			t.Errorf("job %s claimed layer %s: %v, %v, want %v", j.Key, layer, claimed, err, want)
		}
	}
	expect(a, "one", true)
	expect(a, "one", true)
	expect(b, "one", false)
	expect(b, "two", true)
	must(t, c.Jobs.ReleaseLayers(ctx, a.Lease()))
	expect(b, "one", true)
	expect(a, "one", false)
	if _, err := c.Jobs.Extend(ctx, b.Lease(), -time.Second, nil); err != nil {
		t.Fatal(err)
	}
	expect(a, "one", true)
}

// The images of a job end with it. A worker whose job is to be cancelled, or is about another root,
// changes nothing.
func testJobImages(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	want := func(name, state string) {
		t.Helper()
		if images, err := c.Images(ctx, name); err != nil || len(images) != 1 || images[0].State != state {
			t.Errorf("image %s: %+v, %v, want it %s", name, images, err, state)
		}
	}
	// The process of a job that was to be cancelled has ended.
	job := jobOf("one")
	job.Secret = []byte("sealed")
	now, err := c.Name(ctx, "one", []catalog.Image{queued("one")}, job)
	must(t, err)
	j := claim(t, c, "x", "one")
	must(t, c.Begin(ctx, j.Lease(), now[0].N))
	if _, err := c.Jobs.Cancel(ctx, j.N); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"hold": c.Jobs.Hold(ctx, j.Lease()),
		"name": c.NameAs(ctx, j.Lease(), "one", []catalog.Image{queued("one")})} {
		if !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s for a job that is to be cancelled: %v, want ErrLost", what, err)
		}
	}
	if _, err := c.Jobs.Extend(ctx, j.Lease(), -time.Second, nil); err != nil {
		t.Fatal(err)
	}
	wantNoJob(t, c, slots)
	want("one", wire.StateFailed)
	if j, err = c.Jobs.Get(ctx, j.N); err != nil || j.State != wire.JobCancelled || len(j.Secret) > 0 {
		t.Errorf("job %+v, %v, want it cancelled, without its secret", j, err)
	}
	// A retry queues the job's image again. The images of a paused job are not active.
	must(t, c.Jobs.Retry(ctx, j.N))
	want("one", wire.StateQueued)
	j = claim(t, c, "x", "one")
	must(t, c.Begin(ctx, j.Lease(), now[0].N))
	if _, err := c.Jobs.Pause(ctx, j.N); err != nil {
		t.Fatal(err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobQueued, Uncounted: true}, wire.JobPaused)
	want("one", wire.StateQueued)
	must(t, c.Remove(ctx, kind, "one", ""))
	if err := c.Jobs.Retry(ctx, j.N); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("retry after the removal: %v, want ErrNotFound", err)
	}
	// The end of a job fails no image of the root that was requested meanwhile.
	_, err = c.Name(ctx, "two", []catalog.Image{queued("first")}, catalog.Job{Kind: kind, Key: "two", Root: "first"})
	must(t, err)
	j = claim(t, c, "x", "two")
	if _, err := c.Jobs.Cancel(ctx, j.N); err != nil {
		t.Fatal(err)
	}
	_, err = c.Name(ctx, "two", []catalog.Image{queued("second")}, catalog.Job{Kind: kind, Key: "two", Root: "second"})
	must(t, err)
	if err := c.Jobs.Hold(ctx, j.Lease()); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("hold for another root: %v, want ErrLost", err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "late"}, wire.JobQueued)
	want("two", wire.StateQueued)
	if j = claim(t, c, "x", "two"); j.Root != "second" {
		t.Errorf("claimed again %+v, want the second root", j)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "reason"}, wire.JobFailed)
	want("two", wire.StateFailed)
}

// A periodic job is queued once in each interval, however many processes look for it at the same
// moment, and whatever the outcome of the last one was. It is not queued while one is paused.
func testDueJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	waits := false
	add := func(every time.Duration) bool {
		t.Helper()
		queued, after, err := c.Jobs.AddDue(ctx, catalog.Job{Kind: kind, Key: "daily"}, every)
		must(t, err)
		if (after > 0) != waits || waits && after > every {
			t.Errorf("due after %v, want a time before the interval has passed: %t", after, waits)
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
			t.Errorf("queued again before the interval has passed since one was %s", outcome)
		}
		waits = false
	}
	if !add(-time.Hour) {
		t.Error("not queued again after the interval")
	}
	open, err := c.Jobs.Open(ctx, kind, "daily")
	must(t, err)
	if _, err := c.Jobs.Pause(ctx, open.N); err != nil || add(-time.Hour) {
		t.Errorf("queued beside a paused one (%v)", err)
	}
	if other, _, err := c.Jobs.AddDue(ctx, catalog.Job{Kind: kind, Key: "other"}, time.Hour); err != nil || !other {
		t.Errorf("a job with another key is queued: %t, %v", other, err)
	}
}

// Open jobs of retired kinds are cancelled, unless a process works on them.
func testRetiredJobs(t *testing.T, c *catalog.Catalog) {
	ctx, old := t.Context(), []catalog.Slot{{Kind: "old"}}
	numbers := map[string]int64{}
	for _, key := range []string{"works", "stopped", "ended", "paused", "queued"} {
		numbers[key] = addJob(t, c, catalog.Job{Kind: "old", Key: key}, 0)
	}
	var claimed []catalog.Job
	for range 3 {
		j, err := c.Jobs.Claim(ctx, "earlier", old, long)
		must(t, err)
		claimed = append(claimed, j)
	}
	must(t, errorOf(c.Jobs.Extend(ctx, claimed[1].Lease(), -time.Second, nil)))
	end(t, c, claimed[2], catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	must(t, errorOf(c.Jobs.Pause(ctx, numbers["paused"])))
	numbers["known"] = addJob(t, c, catalog.Job{Kind: kind, Key: "known"}, 0)
	for i, want := range []int{3, 0} {
		if n, err := c.Jobs.Retire(ctx, []string{"older", "old"}); n != want || err != nil {
			t.Errorf("call %d: %d jobs were cancelled, %v, want %d", i, n, err, want)
		}
	}
	if n, err := c.Jobs.Retire(ctx, nil); n != 0 || err != nil {
		t.Errorf("without kinds, %d jobs were cancelled (%v)", n, err)
	}
	for key, want := range map[string]string{"works": wire.JobRunning, "stopped": wire.JobCancelled,
		"ended": wire.JobDone, "paused": wire.JobCancelled, "queued": wire.JobCancelled, "known": wire.JobQueued} {
		j, err := c.Jobs.Get(ctx, numbers[key])
		if err != nil || j.State != want || (j.Error != "") != (want == wire.JobCancelled) {
			t.Errorf("job %s: %s (%s), %v, want %s", key, j.State, j.Error, err, want)
		}
	}
}
