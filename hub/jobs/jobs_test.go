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

// outage is a store that a process cannot reach while on is set.
type outage struct {
	*catalog.Jobs
	on atomic.Bool
}

func (d *outage) Claim(
	ctx context.Context, owner string, slots []catalog.Slot, lease time.Duration,
) (catalog.Job, error) {
	if d.on.Load() {
		return catalog.Job{}, errors.New("connection refused")
	}
	return d.Jobs.Claim(ctx, owner, slots, lease)
}

func (d *outage) Extend(ctx context.Context, l catalog.Lease, lease time.Duration, progress []byte) (string, error) {
	if d.on.Load() {
		return "", errors.New("connection refused")
	}
	return d.Jobs.Extend(ctx, l, lease, progress)
}

func (d *outage) Uncount(ctx context.Context, l catalog.Lease) error {
	if d.on.Load() {
		return errors.New("connection refused")
	}
	return d.Jobs.Uncount(ctx, l)
}

// Outages of the store do not count as attempts, however many processes lose their leases.
func TestOutagesDoNotCount(t *testing.T) {
	t.Parallel()
	c := openJobs(t)
	n := add(t, c, "a", "", 0)
	var runs atomic.Int32
	for _, owner := range []string{"a", "b"} {
		store := &outage{Jobs: c}
		start(t, store, owner, jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
			if runs.Add(1) > 4 {
				return nil
			}
			store.on.Store(true)
			<-ctx.Done()
			time.AfterFunc(1500*time.Millisecond, func() { store.on.Store(false) }) // the other process is first
			return ctx.Err()
		}}, 2*time.Second)
	}
	if j := await(t, c, n, wire.JobDone); j.Error != "" || runs.Load() != 5 {
		t.Errorf("%+v after %d runs, want the fifth to be done", j, runs.Load())
	}
}

// A process that cannot extend its lease stops working, and another process runs the job.
func TestLeaseEnds(t *testing.T) {
	c := openJobs(t)
	first := &outage{Jobs: c}
	lost, working := make(chan error, 1), make(chan struct{})
	_, stop := start(t, first, "a", jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
		first.on.Store(true)
		close(working)
		<-ctx.Done()
		lost <- context.Cause(ctx)
		return ctx.Err()
	}}, 2*time.Second)
	n := add(t, c, "a", "", 0)
	<-working
	_, _ = start(t, c, "b", jobs.Kind{Run: func(context.Context, *jobs.Running) error { return nil }}, 0)
	if err := <-lost; !errors.Is(err, catalog.ErrLost) {
		t.Errorf("the first process ended with %v, want ErrLost", err)
	}
	stop()
	if j := await(t, c, n, wire.JobDone); j.Attempts != 2 {
		t.Errorf("%+v, want the second attempt", j)
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

// The queues of several processes add a periodic job once when it is due, and again when the time
// has passed since its end.
func TestPeriodicJob(t *testing.T) {
	c := openJobs(t)
	runs := make(chan string, 100)
	queue := func(owner string, every time.Duration) (stop func()) {
		q := jobs.NewRunner().Queue(c, owner, slog.New(slog.DiscardHandler))
		q.DueInterval = time.Millisecond
		run := func(_ context.Context, j *jobs.Running) error {
			runs <- j.Key
			return nil
		}
		q.Add(jobs.Kind{Name: kind, Key: "daily", Every: every, AtOnce: 1, Run: run})
		q.Add(jobs.Kind{Name: "never", AtOnce: 1})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		return sync.OnceFunc(func() {
			cancel()
			<-done
		})
	}
	stopA, stopB := queue("a", time.Hour), queue("b", time.Hour)
	defer stopA()
	defer stopB()
	if key := <-runs; key != "daily" {
		t.Errorf("job %q ran, want the periodic one", key)
	}
	select {
	case <-runs:
		t.Error("the periodic job ran twice within an hour")
	case <-time.After(200 * time.Millisecond): // the queues check about a hundred times whether it is due
	}
	stopA()
	stopB()
	stopC := queue("c", time.Millisecond)
	defer stopC()
	for range 3 {
		<-runs
	}
}

// counting counts the checks whether a periodic job is due.
type counting struct {
	*catalog.Jobs
	checks *atomic.Int64
}

func (c counting) AddDue(
	ctx context.Context, j catalog.Job, every time.Duration,
) (queued bool, after time.Duration, err error) {
	c.checks.Add(1)
	return c.Jobs.AddDue(ctx, j, every)
}

// After the end of a periodic job, the queue does not check before the next job can be due: a check
// may read all jobs that have ended.
func TestPeriodicJobIsLookedForWhenDue(t *testing.T) {
	store := counting{openJobs(t), new(atomic.Int64)}
	q := jobs.NewRunner().Queue(store, "a", slog.New(slog.DiscardHandler))
	q.DueInterval = time.Millisecond
	numbers := make(chan int64, 1)
	q.Add(jobs.Kind{Name: kind, Key: "daily", Every: time.Hour, AtOnce: 1,
		Run: func(_ context.Context, j *jobs.Running) error {
			numbers <- j.N
			return nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	await(t, store.Jobs, <-numbers, wire.JobDone)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // room for a hundred checks
		before := store.checks.Load()
		time.Sleep(100 * time.Millisecond)
		if store.checks.Load() == before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the queue still checks, an hour before the job is due")
		}
	}
	cancel()
	<-done
}

// silent is a store that does not answer End, like a database that cannot be reached.
type silent struct{ *catalog.Jobs }

func (silent) End(ctx context.Context, _ catalog.Lease, _ catalog.Outcome) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// A queue ends, though the store does not answer.
func TestQueueEndsWithoutItsStore(t *testing.T) {
	store := silent{openJobs(t)}
	ran := make(chan bool)
	_, stop := start(t, store, "a", jobs.Kind{Run: func(context.Context, *jobs.Running) error {
		close(ran)
		return nil
	}}, 0)
	add(t, store.Jobs, "a", "", 0)
	<-ran
	ended := make(chan bool)
	go func() {
		stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the queue waits for the store")
	}
}

// forgetful sends the age with which Forget is called, and forgets nothing.
type forgetful struct {
	*catalog.Jobs
	age chan time.Duration
}

func (f forgetful) Forget(_ context.Context, age time.Duration, _ int) (int64, error) {
	f.age <- age
	return 0, nil
}

// The last job of a periodic kind is kept until the next one is due, however seldom that is.
func TestPeriodicJobIsKept(t *testing.T) {
	const month = 30 * 24 * time.Hour
	store := forgetful{openJobs(t), make(chan time.Duration, 1)}
	start(t, store, "a", jobs.Kind{Every: month, Run: func(context.Context, *jobs.Running) error { return nil }}, 0)
	if age := <-store.age; age <= month {
		t.Errorf("jobs are forgotten after %v, want more than %v", age, month)
	}
}
