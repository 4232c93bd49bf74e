//go:build e2e

package hub_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/hub"
	"lighter/hub/jobs"
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

// stepsEnv names a directory. The process writes the steps that it reaches to its file "seen". At
// the step that is the content of its file "at" it gets a signal: SIGSTOP if the content begins
// with "stop ", otherwise SIGKILL. It removes the file before that.
const stepsEnv = "LIGHTER_TEST_STEPS"

// steps has the steps that a process reaches.
type steps struct {
	dir string
	mu  sync.Mutex
}

// watchSteps makes a process report the steps of a hub.
func watchSteps(h *hub.Hub, dir string) {
	s := &steps{dir: dir}
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
	runtime.LockOSThread() // the signal is for this thread, so that it does nothing more
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), signal)
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
		if kind != s.kind && kind != "request" || slices.Contains(names, name) {
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
			start := func() *process { return startProcess(t, c, stepsEnv+"="+dir) }
			h := start()
			names := some(stepsOf(t, s, h, dir), setup)
			for i, name := range names {
				round := i + 1
				s.prepare(h, round)
				h.idle()
				if h.until(t, s, round, dir, name) {
					h.kill()
					h = start()
				}
				work(t, s, round, h)
			}
			wantUndisturbed(t, s, len(names), sceneConfig(t, s, setup), h)
		})
	}
}

// some returns the steps of the short form of the test: every sixth one, and with PostgreSQL others
// than with SQLite.
func some(names []string, setup string) (chosen []string) {
	if soak {
		return names
	}
	first := 0
	if setup != setupSQLite {
		first = 3
	}
	for i := first; i < len(names); i += 6 {
		chosen = append(chosen, names[i])
	}
	return chosen
}

// until does a round in the background, and waits until the process has ended or stopped at a step.
// It reports whether it has: a step that depends on time may not be reached again.
func (p *process) until(t *testing.T, s scene, round int, dir, step string) bool {
	t.Helper()
	at := filepath.Join(dir, "at")
	if err := os.WriteFile(at+".new", []byte(step), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.do(ctx, p, round) }()
	isDone, failed := false, error(nil)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if state := p.state(); state == "T" || state == "Z" {
			return true
		}
		if isDone { // but jobs may follow
			if open, err := p.client.Jobs(ctx, false); err == nil && !isBusy(open) && os.Remove(at) == nil {
				t.Logf("step %q was not reached in round %d", step, round)
				return false
			}
		}
		select {
		case err := <-ended:
			isDone, failed = err == nil, err // with an error, the process has just ended or stopped
		default:
		}
	}
	t.Fatalf("step %q: the process neither ends nor completes its work: %v", step, failed)
	return false
}

// A process that is stopped at any step of its work, for longer than its leases, changes nothing
// when it wakes up: another process has done the work.
func TestStoppedAtEachStep(t *testing.T) {
	t.Parallel()
	eachScene(t, setupPostgres, func(t *testing.T, s scene, c hub.Config) {
		dir := t.TempDir()
		a := startProcess(t, c, stepsEnv+"="+dir)
		names := withoutReads(stepsOf(t, s, a, dir))
		b := startProcess(t, further(t, c), stepsEnv+"="+t.TempDir())
		rounds := 0
		for i, name := range names {
			if i%6 != 0 && !soak {
				continue
			}
			rounds++
			s.prepare(b, rounds)
			b.idle()
			b.signal(syscall.SIGSTOP) // so that a gets the work
			reached := a.until(t, s, rounds, dir, "stop "+name)
			b.signal(syscall.SIGCONT)
			work(t, s, rounds, b)
			if reached {
				a.signal(syscall.SIGCONT)
			}
			work(t, s, rounds, a)
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
	eachScene(t, setupSQLite, func(t *testing.T, s scene, c hub.Config) {
		dir := t.TempDir()
		h := startProcess(t, c, stepsEnv+"="+dir)
		names := some(withoutReads(stepsOf(t, s, h, dir)), setupSQLite)
		for i, name := range names {
			round := i + 1
			s.prepare(h, round)
			h.idle()
			if h.until(t, s, round, dir, "stop "+name) {
				time.Sleep(2 * stepsLease) // its leases end
				h.signal(syscall.SIGCONT)
			}
			work(t, s, round, h)
		}
		wantUndisturbed(t, s, len(names), sceneConfig(t, s, setupSQLite), h)
	})
}
