//go:build e2e

package hub_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/hub"
	"lighter/hub/jobs"
	"lighter/test/testkit/s3"
)

// The named steps of a hub's work. Each job of a kind begins and ends, reads the catalog, and
// commits transactions; requests commit some, too. All that is durable changes between two of these
// steps, so a process that ends at each of them has ended everywhere. A test learns the steps from
// an undisturbed process: steps that are added to the hub are tested without being listed here.
//
//	image: begin
//	image: before publish        a transaction is about to commit
//	image: after publish         it has committed
//	image: read SELECT …         a query is about to run
//	request: before queue image
//	store: PUT packs             the bucket has stored an object; the process does not know it yet

// stepsEnv names a directory. The process writes the steps that it reaches to its file "seen". At
// the step that is the content of its file "at" it gets a signal: SIGSTOP if the content begins
// with "stop ", otherwise SIGKILL. It removes the file before that.
const stepsEnv = "LIGHTER_TEST_STEPS"

// steps has the steps that a process reaches.
type steps struct {
	dir    string
	signal func(syscall.Signal) // sends a signal to the process, which does nothing more afterwards
	mu     sync.Mutex
}

// watchSteps makes a process report the steps of a hub.
func watchSteps(h *hub.Hub, dir string) {
	s := &steps{dir: dir, signal: signalThread}
	type kind struct{}
	h.Jobs().Around(func(run jobs.Run) jobs.Run {
		return func(ctx context.Context, j *jobs.Running) error {
			s.reach(j.Kind + ": begin")
			err := run(context.WithValue(ctx, kind{}, j.Kind), j)
			s.reach(j.Kind + ": end")
			return err
		}
	}, h.Jobs().Kinds()...)
	h.Catalog().Observe(func(ctx context.Context, statement string, _ []any) {
		statement = strings.Join(strings.Fields(statement), " ")
		if in, ok := ctx.Value(kind{}).(string); ok && strings.HasPrefix(statement, "SELECT") {
			s.reach(in + ": read " + statement)
		}
	})
	h.Catalog().ObserveCommits(func(ctx context.Context, what string, committed bool) {
		in, ok := ctx.Value(kind{}).(string)
		if !ok && ctx.Value(http.ServerContextKey) == nil {
			return // periodic work
		}
		when := "before"
		if committed {
			when = "after"
		}
		s.reach(fmt.Sprintf("%s: %s %s", cmp.Or(in, "request"), when, withoutNames(what)))
	})
}

var namesInText = regexp.MustCompile(` \S*[0-9:/]\S*| [0-9a-f]{8,}`)

// withoutNames returns what a transaction does without the names of images, trees and layers.
func withoutNames(what string) string { return namesInText.ReplaceAllString(what, "") }

// reach is called at each step.
func (s *steps) reach(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, err := os.OpenFile(filepath.Join(s.dir, "seen"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		fmt.Fprintln(f, name)
		_ = f.Close()
	}
	at, err := os.ReadFile(filepath.Join(s.dir, "at"))
	if err != nil {
		return
	}
	signal := syscall.SIGKILL
	stopped, stops := strings.CutPrefix(string(at), "stop ")
	if stops {
		signal = syscall.SIGSTOP
	}
	if stopped != name {
		return
	}
	_ = os.Remove(filepath.Join(s.dir, "at"))
	s.signal(signal)
}

// signalThread sends a signal to this process. It is for this thread, so that it does nothing more.
func signalThread(signal syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), signal)
}

// watchWrites returns the configuration of a hub whose requests to its bucket pass through a proxy.
// Each answer to a write is a step of the process that was stored last in of.
func watchWrites(t *testing.T, c hub.Config, dir string, of *atomic.Pointer[process]) hub.Config {
	t.Helper()
	if c.Bucket == "" {
		return c
	}
	s := &steps{dir: dir, signal: func(signal syscall.Signal) {
		p := of.Load()
		_ = p.cmd.Process.Signal(signal)
		for range 1000 {
			if state := p.state(); state == "T" || state == "Z" {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}}
	through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			w = answer{w, func() { s.reach(writeStep(req)) }}
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	c.Bucket = through
	return c
}

// answer calls arrived when the answer to a request has arrived, before the client gets it.
type answer struct {
	http.ResponseWriter
	arrived func()
}

// WriteHeader implements http.ResponseWriter.
func (a answer) WriteHeader(status int) {
	if status >= http.StatusOK { // others say that the bucket waits for the request's body
		a.arrived()
	}
	a.ResponseWriter.WriteHeader(status)
}

var nameInPath = regexp.MustCompile(`^([^/]*[0-9][^/]*|[a-f]{1,2}|)$`)

// writeStep returns the step of a write without the names of images and blobs.
func writeStep(req *http.Request) string {
	parts := strings.Split(req.URL.Path, "/")
	parts = slices.DeleteFunc(parts, nameInPath.MatchString)
	return "store: " + req.Method + " " + strings.Join(parts, "/")
}

// stepsOf does a round at a process, and returns the steps that it reaches. The short form of the
// test has a part of the queries only.
func stepsOf(t *testing.T, s scene, h *process, dir string) (names []string) {
	t.Helper()
	s.prepare(h, 0)
	h.idle()
	seen := filepath.Join(dir, "seen")
	write(t, seen, nil)
	work(t, s, 0, h)
	b, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	for name := range strings.Lines(string(b)) {
		name = strings.TrimSuffix(name, "\n")
		kind, what, _ := strings.Cut(name, ": ")
		if kind != s.kind && kind != "request" && kind != "store" || slices.Contains(names, name) {
			continue
		}
		if strings.HasPrefix(what, "read ") {
			if reads++; reads%4 != 0 && !soak {
				continue
			}
		}
		names = append(names, name)
	}
	return names
}

// A process that is killed at any step of its work leaves nothing that the next one does not
// complete or clean up: in the end, the hub has the same as one that was never killed.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, setup := range []string{setupSQLite, setupPostgres} {
		eachScene(t, setup, func(t *testing.T, s scene, c hub.Config) {
			dir := t.TempDir()
			var running atomic.Pointer[process]
			c = watchWrites(t, c, dir, &running)
			start := func() *process {
				h := startProcess(t, c, stepsEnv+"="+dir)
				running.Store(h)
				return h
			}
			h := start()
			names := some(stepsOf(t, s, h, dir), setup)
			for i, name := range names {
				round := i + 1
				s.prepare(h, round)
				h.idle()
				before := h.lastJob()
				reached, answer := h.until(t, s, round, dir, name)
				if reached {
					h.kill()
					h = start()
				}
				if !completed(t, s, round, before, <-answer, h) {
					work(t, s, round, h)
				}
			}
			wantUndisturbed(t, s, len(names), sceneConfig(t, s, setup), h)
		})
	}
}

// shortForm is how many steps there are for one that the short form of a test has.
const shortForm = 16

// some returns the steps of the short form of the test, with PostgreSQL others than with SQLite.
func some(names []string, setup string) (chosen []string) {
	if soak {
		return names
	}
	first := 0
	if setup == setupPostgres {
		first = shortForm / 2
	}
	for i := first; i < len(names); i += shortForm {
		chosen = append(chosen, names[i])
	}
	return chosen
}

// until sends a round's requests in the background, and waits until the process has ended or
// stopped at a step. It reports whether it has: a step that depends on time may not be reached
// again. answer gets the answer to the requests.
func (p *process) until(t *testing.T, s scene, round int, dir, step string) (reached bool, answer <-chan error) {
	t.Helper()
	t.Logf("round %d: %s", round, step)
	at := filepath.Join(dir, "at")
	if err := os.WriteFile(at+".new", []byte(step), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		ended <- s.ask(ctx, p, round)
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if state := p.state(); state == "T" || state == "Z" {
			return true, ended
		}
		if len(ended) == 0 {
			continue
		}
		if open, err := p.client.Jobs(t.Context(), false); err == nil && !isBusy(open) && os.Remove(at) == nil {
			t.Logf("step %q was not reached in round %d", step, round)
			return false, ended
		}
	}
	t.Fatalf("step %q: the process neither ends nor completes its work", step)
	return false, nil
}

// errStopped is the answer of a process that is stopped.
var errStopped = errors.New("the process does not answer")

// A process that is stopped at any step of its work, for longer than its leases, changes nothing
// when it wakes up: another process has done the work.
func TestStoppedAtEachStep(t *testing.T) {
	t.Parallel()
	eachScene(t, setupPostgres, func(t *testing.T, s scene, c hub.Config) {
		dir := t.TempDir()
		var running atomic.Pointer[process]
		a := startProcess(t, watchWrites(t, c, dir, &running), stepsEnv+"="+dir)
		running.Store(a)
		names := withoutReads(stepsOf(t, s, a, dir))
		b := startProcess(t, further(t, c), stepsEnv+"="+t.TempDir())
		rounds := 0
		for i, name := range names {
			if i%shortForm != 0 && !soak {
				continue
			}
			rounds++
			s.prepare(b, rounds)
			b.idle()
			before := b.lastJob()
			b.signal(syscall.SIGSTOP) // so that a gets the work
			reached, answer := a.until(t, s, rounds, dir, "stop "+name)
			b.signal(syscall.SIGCONT)
			if reached {
				if !completed(t, s, rounds, before, errStopped, b) {
					work(t, s, rounds, b)
				}
				a.signal(syscall.SIGCONT)
			}
			if !completed(t, s, rounds, before, <-answer, a) {
				work(t, s, rounds, a)
			}
		}
		wantUndisturbed(t, s, rounds, sceneConfig(t, s, setupPostgres), b)
	})
}

// withoutReads returns the steps that are no queries.
func withoutReads(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return strings.Contains(name, ": read ") })
}

// A process without another one is stopped at any step of its work, for longer than its leases.
// When it wakes up, it has lost its jobs, and claims them again: each is done once.
func TestStoppedAloneAtEachStep(t *testing.T) {
	t.Parallel()
	eachScene(t, setupBucket, func(t *testing.T, s scene, c hub.Config) {
		dir := t.TempDir()
		var running atomic.Pointer[process]
		h := startProcess(t, watchWrites(t, c, dir, &running), stepsEnv+"="+dir)
		running.Store(h)
		names := some(withoutReads(stepsOf(t, s, h, dir)), setupBucket)
		for i, name := range names {
			round := i + 1
			s.prepare(h, round)
			h.idle()
			before := h.lastJob()
			reached, answer := h.until(t, s, round, dir, "stop "+name)
			if reached {
				time.Sleep(stepsClaimLease + stepsLease/3) // its leases end
				h.signal(syscall.SIGCONT)
			}
			if !completed(t, s, round, before, <-answer, h) {
				work(t, s, round, h)
			}
		}
		wantUndisturbed(t, s, len(names), sceneConfig(t, s, setupBucket), h)
	})
}
