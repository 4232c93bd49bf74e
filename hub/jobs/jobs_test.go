package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

const kind = "work"

func openJobs(t *testing.T) *catalog.Jobs {
	t.Helper()
	return catalogtest.Open(t, filepath.Join(t.TempDir(), "catalog.db")).Jobs
}

// start runs a queue with one kind of jobs. stop ends it and waits.
func start(
	t *testing.T, store jobs.Store, owner string, k jobs.Kind, lease time.Duration,
) (q *jobs.Queue, stop func()) {
	t.Helper()
	q = jobs.NewRunner().Queue(store, owner, slog.New(slog.DiscardHandler))
	k.Name = kind
	if k.AtOnce == 0 {
		k.AtOnce = 1
	}
	if lease > 0 {
		q.Lease = lease
	}
	q.RetryDelay = time.Millisecond
	q.Add(k)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
	})
	t.Cleanup(stop)
	return q, stop
}

func add(t *testing.T, c *catalog.Jobs, key, payload string, priority int64) int64 {
	t.Helper()
	n, err := c.Add(t.Context(), catalog.Job{Kind: kind, Key: key, Payload: []byte(payload), Priority: priority}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// await waits until a job has a state.
func await(t *testing.T, c *catalog.Jobs, n int64, state string) catalog.Job {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		j, err := c.Get(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if j.State == state {
			return j
		}
		if time.Now().After(deadline) {
			t.Fatalf("job %d is %s (%s), want %s", n, j.State, j.Error, state)
		}
	}
}

// safeBuffer is a log that may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The log of a job that is tried again does not have the secrets of URLs.
func TestLogOfJobsWithoutSecrets(t *testing.T) {
	c, log := openJobs(t), &safeBuffer{}
	q := jobs.NewRunner().Queue(c, "a", slog.New(slog.NewTextHandler(log, nil)))
	q.RetryDelay = time.Millisecond
	tries := 0
	q.Add(jobs.Kind{Name: kind, AtOnce: 1, Tries: 3, Run: func(context.Context, *jobs.Running) error {
		err := errors.New("GET https://user:5ec3e7@example.org/x?X-Amz-Signature=5ec3e7: refused")
		switch tries++; tries {
		case 1:
			return &jobs.RetryError{Err: err}
		case 2:
			return err
		}
		return nil
	}})
	n := add(t, c, "a", "", 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	await(t, c, n, wire.JobDone)
	cancel()
	<-done
	text := log.String()
	if strings.Contains(text, "5ec3e7") || strings.Count(text, "https://example.org/x") != 2 {
		t.Errorf("the log is %s, want two lines with the URL and without its secrets", text)
	}
}

// A job is tried again after a RetryError, while a store is away and when the disk is full. After
// another error it has failed, and its reason has no secrets.
func TestJobsGetToTheirEnd(t *testing.T) {
	c := openJobs(t)
	later, away, full := 5, 5, syscall.ENOSPC
	q, _ := start(t, c, "a", jobs.Kind{
		Run: func(_ context.Context, j *jobs.Running) (err error) {
			j.Step("layer", j.Key, 7).Add(7)
			switch {
			case j.Key == "full" && full != 0:
				err, full = fmt.Errorf("write a file: %w", full), 0
				return err
			case j.Key == "bad":
				return fmt.Errorf("fetch https://user:secret@example.org/x: %w", errors.New("gone"))
			case j.Key == "later" && later > 0:
				later--
				return &jobs.RetryError{Err: errors.New("not yet")}
			case j.Key == "away" && away > 0:
				away--
				return fmt.Errorf("read an image: %w", catalog.ErrAway)
			}
			return nil
		},
	}, 0)
	good, bad := add(t, c, "good", "", 0), add(t, c, "bad", "", 0)
	var retried []int64
	for _, key := range []string{"later", "away", "full"} {
		retried = append(retried, add(t, c, key, "", 0))
	}
	q.Changed(kind, "a")
	await(t, c, good, wire.JobDone)
	j := await(t, c, bad, wire.JobFailed)
	if want := "fetch https://example.org/x: gone"; j.Error != want {
		t.Errorf("error %q, want %q", j.Error, want)
	}
	for _, n := range retried {
		await(t, c, n, wire.JobDone)
	}
	if later+away+int(full) > 0 {
		t.Errorf("%d, %d and %d attempts are left, want all to have failed", later, away, full)
	}
}

// A job that runs is cancelled, paused and run again, and Await follows it.
func TestRunningJobIsInterrupted(t *testing.T) {
	c := openJobs(t)
	runs := make(chan string, 10)
	q, _ := start(t, c, "a", jobs.Kind{Run: func(ctx context.Context, j *jobs.Running) error {
		runs <- string(j.Payload)
		if string(j.Payload) == "last" {
			j.Step("layer", "l", 1).Add(1)
			return nil
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), jobs.ErrInterrupted) {
			t.Errorf("the job ended with %v, want ErrInterrupted", context.Cause(ctx))
		}
		return ctx.Err()
	}}, 0)
	n := add(t, c, "a", "first", 0)
	q.Changed(kind, "a")
	if got := <-runs; got != "first" {
		t.Fatalf("run with %q, want the first payload", got)
	}
	if _, err := q.Pause(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	await(t, c, n, wire.JobPaused)
	if _, err := q.Retry(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	<-runs
	if _, err := q.Cancel(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	await(t, c, n, wire.JobCancelled)
	n = add(t, c, "a", "second", 0)
	q.Changed(kind, "a")
	<-runs
	add(t, c, "a", "last", 0)
	q.Changed(kind, "a")
	var lines []wire.Progress
	sender := report.NewSender(func(p wire.Progress) error {
		lines = append(lines, p)
		return nil
	})
	if err := q.Await(t.Context(), kind, "a", sender, func(ctx context.Context) (bool, error) {
		j, err := c.Get(ctx, n)
		return j.State == wire.JobDone, err
	}); err != nil {
		t.Fatal(err)
	}
	if got := <-runs; got != "last" {
		t.Errorf("run with %q, want the last payload", got)
	}
}

// A job is paused or cancelled, as requested, if its worker finds that before the queue does.
func TestWorkerFindsARequestFirst(t *testing.T) {
	for state, request := range map[string]func(*catalog.Jobs, context.Context, int64) (string, error){
		wire.JobPaused: (*catalog.Jobs).Pause, wire.JobCancelled: (*catalog.Jobs).Cancel,
	} {
		c := openJobs(t)
		begun, write := make(chan struct{}), make(chan struct{})
		q, _ := start(t, c, "a", jobs.Kind{Run: func(ctx context.Context, j *jobs.Running) error {
			close(begun)
			<-write
			return fmt.Errorf("write: %w", c.HoldUnchanged(ctx, j.Lease()))
		}}, 0)
		n := add(t, c, "a", "", 0)
		q.Changed(kind, "a")
		<-begun
		if _, err := request(c, t.Context(), n); err != nil { // the queue is not told
			t.Fatal(err)
		}
		close(write)
		if j := await(t, c, n, state); j.Attempts != 0 || j.Error != "" {
			t.Errorf("the job is %+v, want no attempt and no error", j)
		}
	}
}

// A job that is cancelled and added again is interrupted, even if its worker did not notice the
// cancellation before.
func TestAddAfterCancel(t *testing.T) {
	c := openJobs(t)
	runs := make(chan struct{}, 10)
	q, _ := start(t, c, "a", jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
		runs <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}, 0)
	n := add(t, c, "a", "same", 0)
	q.Changed(kind, "a")
	<-runs
	if _, err := c.Cancel(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if again := add(t, c, "a", "same", 0); again != n {
		t.Errorf("added job %d, want job %d again, which still runs", again, n)
	}
	q.Changed(kind, "a")
	select {
	case <-runs:
	case <-time.After(30 * time.Second):
		t.Error("the worker was not interrupted")
	}
}

// Await calls over only after a change of its own job, and every few seconds. Changes of other jobs
// do not matter.
func TestAwaitAsksSeldom(t *testing.T) {
	c := openJobs(t)
	begun, end := make(chan struct{}, 10), make(chan struct{})
	q, _ := start(t, c, "a", jobs.Kind{AtOnce: 2, Run: func(ctx context.Context, j *jobs.Running) error {
		begun <- struct{}{}
		if j.Key == "a" {
			<-end
		}
		return nil
	}}, 0)
	n := add(t, c, "a", "", 0)
	q.Changed(kind, "a")
	<-begun
	asked, done := atomic.Int64{}, make(chan error, 1)
	started := time.Now()
	seldom := func(asked int64) bool { return asked <= 3+int64(time.Since(started)/time.Second) }
	go func() {
		done <- q.Await(t.Context(), kind, "a", report.NewSender(func(wire.Progress) error { return nil }),
			func(ctx context.Context) (bool, error) {
				asked.Add(1)
				j, err := c.Get(ctx, n)
				return j.State == wire.JobDone, err
			})
	}()
	for i := range 20 { // other jobs
		add(t, c, fmt.Sprint(i), "", 0)
		q.Changed(kind, fmt.Sprint(i))
		<-begun
	}
	close(end)
	if err := <-done; err != nil || !seldom(asked.Load()) {
		t.Errorf("error %v, asked %d times in %v, want about once a second", err, asked.Load(), time.Since(started))
	}
}

// A queue that ends gives its jobs back, and the attempt does not count.
func TestQueueEnds(t *testing.T) {
	c := openJobs(t)
	started := make(chan struct{}, 10)
	block := jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	n := add(t, c, "a", "", 0)
	for range 5 {
		_, stop := start(t, c, "a", block, 0)
		<-started
		stop()
		if j, err := c.Get(t.Context(), n); err != nil || j.State != wire.JobQueued || j.Attempts != 0 {
			t.Fatalf("job %+v, %v, want it queued, with no attempts", j, err)
		}
	}
}

// A job during which three processes have ended has failed, and does not run again.
func TestJobIsGivenUp(t *testing.T) {
	c := openJobs(t)
	n := add(t, c, "a", "", 0)
	for i := range 3 { // processes that are killed
		if _, err := c.Claim(t.Context(), fmt.Sprint(i), []catalog.Slot{{Kind: kind}}, -time.Second); err != nil {
			t.Fatal(err)
		}
	}
	start(t, c, "a", jobs.Kind{
		Run: func(context.Context, *jobs.Running) error { t.Error("the job ran a fourth time"); return nil },
	}, 0)
	if j := await(t, c, n, wire.JobFailed); j.Error == "" {
		t.Error("a job that was given up has no reason")
	}
}

// Jobs without priority leave room for urgent ones.
func TestUrgentJobsHaveRoom(t *testing.T) {
	c := openJobs(t)
	running := make(chan string, 10)
	q, _ := start(t, c, "a", jobs.Kind{AtOnce: 3, Urgent: 1, Run: func(ctx context.Context, j *jobs.Running) error {
		running <- j.Key
		<-ctx.Done()
		return ctx.Err()
	}}, 0)
	for i := range 5 {
		add(t, c, fmt.Sprint(i), "", 0)
	}
	q.Changed(kind, "a")
	seen := map[string]bool{<-running: true, <-running: true}
	select {
	case key := <-running:
		t.Errorf("job %s, which is not urgent, takes the slot of urgent jobs", key)
	case <-time.After(100 * time.Millisecond):
	}
	add(t, c, "urgent", "", 1)
	q.Changed(kind, "a")
	if key := <-running; key != "urgent" || !seen["0"] || !seen["1"] {
		t.Errorf("job %s runs beside %v, want the urgent job beside 0 and 1", key, seen)
	}
}
