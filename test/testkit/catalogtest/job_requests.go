package catalogtest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lighter/hub/catalog"
	"lighter/wire"
)

// Queued and running jobs can be paused and resumed, and running jobs can be cancelled.
func testJobRequests(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	n := addJob(t, c, catalog.Job{Kind: kind, Key: "a", Secret: []byte("s")}, 0)
	if state, err := c.Jobs.Pause(ctx, n); err != nil || state != wire.JobPaused {
		t.Fatalf("pause a queued job: got state %s (%v), want %s", state, err, wire.JobPaused)
	}
	wantNoJob(t, c, slots)
	addJob(t, c, catalog.Job{Kind: kind, Key: "a", Secret: []byte("s")}, 0) // it stays paused
	wantNoJob(t, c, slots)
	must(t, c.Jobs.Retry(ctx, n))
	j := claim(t, c, "x", "a")
	add := func(payload string, byUser bool) func() (string, error) {
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
		{add("", false), wire.JobPauseAgain}, {add("", true), wire.JobAgain}, {add("", false), wire.JobAgain},
		{add("other", false), wire.JobRestart}, {add("other", true), wire.JobRestart}, {cancel, wire.JobCancel},
		{pause, wire.JobCancel}, {add("other", false), wire.JobRestart}, {cancel, wire.JobCancel},
	} {
		if state, err := step.ask(); err != nil || state != wire.JobRunning {
			t.Errorf("state after request %d of a running job: got %s (%v), want %s", i, state, err, wire.JobRunning)
		}
		if request, err := c.Jobs.Extend(ctx, j.Lease(), long, nil); err != nil || request != step.want {
			t.Errorf("after request %d, Extend returned the request %q (%v), want %s", i, request, err, step.want)
		}
	}
	lose(t, c, j) // the last request, to cancel, is carried out without the worker
	wantNoJob(t, c, slots)
	if j, err := c.Jobs.Get(ctx, n); err != nil || j.State != wire.JobCancelled {
		t.Errorf("job %+v, %v, want it cancelled", j, err)
	}
	if _, err := c.Jobs.Cancel(ctx, n); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("cancel an ended job: %v, want ErrNotFound", err)
	}
	must(t, c.Jobs.Retry(ctx, n))
	claim(t, c, "x", "a")
	if err := c.Jobs.Retry(ctx, n); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("retry a running job: %v, want ErrNotFound", err)
	}
}

// A paused job runs when it is added again only if a user adds it. If a running job is to be paused
// and is added again, it is paused when its attempt has ended. If it is not added again, it ends
// with the attempt.
func testPausedJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	job := catalog.Job{Kind: kind, Key: "a", Payload: []byte("1")}
	n := addJob(t, c, job, 0)
	pause := func() {
		t.Helper()
		must(t, errorOf(c.Jobs.Pause(ctx, n)))
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

// A job that has ended, or was paused for long, loses its secret. The catalog remembers that the
// job had a secret.
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
	must(t, errorOf(c.Jobs.Pause(ctx, n)))
	must(t, errorOf(c.Jobs.Forget(ctx, long, 10)))
	want(n, "sealed", false)
	must(t, errorOf(c.Jobs.Forget(ctx, -long, 10)))
	want(n, "", true)
	addJob(t, c, job, 0)
	want(n, "sealed", false)
	must(t, c.Jobs.Retry(ctx, n))
	end(t, c, claim(t, c, "x", "a"), catalog.Outcome{State: wire.JobFailed}, wire.JobFailed)
	want(n, "", true)
	n = addJob(t, c, job, 0)
	must(t, errorOf(c.Jobs.Cancel(ctx, n)))
	want(n, "", true)
	n = addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	end(t, c, claim(t, c, "x", "b"), catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	want(n, "", false)
}

// Withdraw removes a job only if, since it was added, nobody has claimed it or added it with
// another payload. Otherwise the job runs as soon as possible, or once more if it is running.
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
			t.Errorf("Withdraw: lasted is %t (%v), want %t", lasted, err, want)
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
	lose(t, c, claimed[1])
	end(t, c, claimed[2], catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	must(t, errorOf(c.Jobs.Pause(ctx, numbers["paused"])))
	numbers["known"] = addJob(t, c, catalog.Job{Kind: kind, Key: "known"}, 0)
	for i, want := range []int{3, 0} {
		if n, err := c.Jobs.Retire(ctx, []string{"older", "old"}); n != want || err != nil {
			t.Errorf("call %d: %d jobs were cancelled, %v, want %d", i, n, err, want)
		}
	}
	if n, err := c.Jobs.Retire(ctx, nil); n != 0 || err != nil {
		t.Errorf("without kinds, %d jobs were cancelled (%v), want none", n, err)
	}
	for key, want := range map[string]string{"works": wire.JobRunning, "stopped": wire.JobCancelled,
		"ended": wire.JobDone, "paused": wire.JobCancelled, "queued": wire.JobCancelled, "known": wire.JobQueued} {
		j, err := c.Jobs.Get(ctx, numbers[key])
		if err != nil || j.State != want || (j.Error != "") != (want == wire.JobCancelled) {
			t.Errorf("job %s: %s (%s), %v, want %s", key, j.State, j.Error, err, want)
		}
	}
}
