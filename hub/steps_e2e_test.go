//go:build e2e

package hub_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/retention"
	"lighter/test/testkit/tarball"
	"lighter/wire"
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

// scene is some work of a hub. It is done once for each of its steps, as round 1, 2, …
type scene struct {
	name string
	kind string // of jobs whose steps are looked at beside those of requests; others are of other scenes
	// configure changes the configuration.
	configure func(c *hub.Config)
	// prepare makes what the work needs.
	prepare func(h *process, round int)
	// do does the work at one of the processes. It is repeated until it succeeds, as clients do.
	do func(ctx context.Context, h *process, round int) error
}

// layerOfRound returns a layer that no other round has, with small and large files.
func layerOfRound(round, n int) []byte {
	var entries []tarball.Item
	for i := range uint64(4) {
		entries = append(entries, tarball.File(fmt.Sprintf("round-%d/%d", round, i),
			noise(uint64(1000+round*40+n*4)+i, 40_000)))
	}
	return tarball.Of(entries...)
}

// imageOfRound returns an image with a layer that all rounds have, and one of its own.
func imageOfRound(round, n int) fakeImage { return image(lowerTar, layerOfRound(round, n)) }

func roundName(round, n int) string { return fmt.Sprintf("r%d/a:%d", round, n) }

// pushReady pushes an image and waits until it is ready.
func (p *process) pushReady(name string, i fakeImage) {
	p.t.Helper()
	p.push(name, i)
	p.ready(name)
}

// ended waits for the end of a job, and returns an error unless it is done.
func (p *process) ended(ctx context.Context, n int64) error {
	for {
		all, err := p.client.Jobs(ctx, true)
		if err != nil {
			return err
		}
		for _, j := range all {
			if j.N == n && j.State != wire.JobDone {
				return fmt.Errorf("job %+v", j)
			}
			if j.N == n {
				return nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func silent(wire.Progress) {}

// scenes are all kinds of work.
func scenes(t *testing.T) []scene {
	sources := map[int]*fakeRegistry{}
	return []scene{{
		name: "add", kind: "image",
		prepare: func(_ *process, round int) {
			if sources[round] == nil {
				sources[round] = startRegistry(t, imageOfRound(round, 1))
			}
		},
		do: func(ctx context.Context, h *process, round int) error {
			_, err := h.client.Add(ctx, wire.Add{Source: sources[round].source(), Name: roundName(round, 1)}, silent)
			return err
		},
	}, {
		name: "push", kind: "name",
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), imageOfRound(round, 1))
			h.push(roundName(round, 2), imageOfRound(round, 2)) // so that only the tag is left to be pushed
			h.ready(roundName(round, 2))
		},
		do: func(ctx context.Context, h *process, round int) error {
			manifest, _, _ := imageOfRound(round, 2).build()
			b, err := json.Marshal(manifest)
			if err != nil {
				return err
			}
			repository, _, _ := strings.Cut(roundName(round, 1), ":")
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, h.url+"/v2/"+repository+"/manifests/1",
				strings.NewReader(string(b)))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", manifest.MediaType)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusCreated {
				return fmt.Errorf("push: %s", res.Status)
			}
			_, err = h.client.Add(ctx, wire.Add{Name: roundName(round, 1)}, silent)
			return err
		},
	}, {
		name: "start", kind: "layout",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do:      sendTrace,
	}, {
		name: "recompress", kind: "recompress",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do:      sendTrace,
	}, {
		name: "verify", kind: "verify",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do: func(ctx context.Context, h *process, round int) error {
			last, err := h.client.Verify(ctx, roundName(round, 1), silent)
			if err == nil && len(last.Problems) > 0 {
				t.Errorf("problems %q", last.Problems)
			}
			return err
		},
	}, {
		name: "remove", kind: "name",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do: func(ctx context.Context, h *process, round int) error {
			if images, err := h.client.Images(ctx, roundName(round, 1)); err != nil || len(images) == 0 {
				return err
			}
			return h.client.Remove(ctx, roundName(round, 1))
		},
	}, {
		name: "collect", kind: "collect",
		configure: func(c *hub.Config) { c.GC = hub.GC{} }, // nothing stays
		prepare: func(h *process, round int) { // an image of its own goes, and one whose pack is rewritten
			first := uint64(2000 + round*30)
			h.pushReady(roundName(round, 1), image(layer(first, first+1)))
			h.pushReady(roundName(round, 2), image(layer(seeds(first+2, first+20)...)))
			h.pushReady(roundName(round, 3), image(layer(first+2, first+3)))
			h.remove(roundName(round, 1))
			h.remove(roundName(round, 2))
		},
		do: func(ctx context.Context, h *process, _ int) error {
			for range 2 { // the second one drops rewritten packs
				job, err := h.client.Collect(ctx)
				if err == nil {
					_, err = h.client.AwaitCollection(ctx, job.N, silent)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}, {
		name: "repair", kind: "fsck",
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), image(layerOfRound(round, 1)))
			h.idle()
			dir := objectsDir(h.config)
			for _, key := range files(t, dir) {
				if err := os.Remove(filepath.Join(dir, key)); err != nil {
					t.Fatal(err)
				}
			}
			unknown := filepath.Join(dir, objects.PackKey(chunk.Sum([]byte(fmt.Sprint(round)))))
			write(t, unknown, []byte("unknown"))
			at := time.Now().Add(-25 * time.Hour)
			if err := os.Chtimes(unknown, at, at); err != nil {
				t.Fatal(err)
			}
		},
		do: func(ctx context.Context, h *process, _ int) error {
			last, err := h.client.Fsck(ctx, wire.Fsck{Repair: true}, silent)
			if err == nil && last.Check.Left() != 0 {
				t.Errorf("not repaired: %s", findings(*last.Check))
			}
			return err
		},
	}, {
		name: "retention", kind: "retention",
		configure: func(c *hub.Config) {
			c.RetentionMaxPercent = 100
			c.Retention = []retention.Rule{{Repositories: []string{"**"}, KeepTags: []retention.Keep{{Newest: 1}}}}
		},
		prepare: func(h *process, round int) {
			for n := range 3 {
				h.pushReady(roundName(round, n), image(tarball.Of(tarball.File("f", noise(uint64(round*4+n), 1000)))))
			}
		},
		do: func(ctx context.Context, h *process, _ int) error {
			job, err := h.client.ApplyRetention(ctx, nil)
			if err != nil {
				return err
			}
			return h.ended(ctx, job.N)
		},
	}}
}

// sendTrace reports a start of a round's image, and waits for its layout and the recompression.
func sendTrace(ctx context.Context, h *process, round int) error {
	images, err := h.client.Images(ctx, roundName(round, 1))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("%d images", len(images)))
	}
	tree, err := chunk.ParseID(images[0].Tree)
	if err != nil {
		return err
	}
	reads := []trace.Read{{Offset: 0, Length: 64 << 10}, {Offset: 128 << 10, Length: 32 << 10}}
	return h.client.SendTrace(ctx, tree, trace.Trace{Tree: tree, Reads: reads})
}

// catalogOf returns what opens the catalog of a hub.
func catalogOf(c hub.Config) string { return cmp.Or(c.Catalog, filepath.Join(c.Root, "catalog.db")) }

// state returns the state of a process as the kernel shows it: T if it is stopped, Z if it has
// ended.
func (p *process) state() string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return "Z"
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}

// work does a round at one of some processes, until it succeeds and nothing is left to do.
func work(t *testing.T, s scene, round int, at ...*process) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		h := at[n%len(at)]
		err := s.do(ctx, h, round)
		cancel()
		if err == nil {
			h.idle()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("round %d: %v", round, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// soak says that the long form of a test runs.
var soak = os.Getenv("LIGHTER_SOAK") != ""

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

// scenesAtOnce bounds the scenes that are played at the same time, of two or three processes each.
const scenesAtOnce = 4

// eachScene plays all scenes, some of them at the same time: they mostly wait for processes.
func eachScene(t *testing.T, setup string, play func(t *testing.T, s scene, c hub.Config)) {
	var all errgroup.Group
	all.SetLimit(scenesAtOnce)
	for i := range scenes(t) {
		all.Go(func() error {
			name := scenes(t)[i].name
			t.Run(setup+", "+name, func(t *testing.T) {
				s := scenes(t)[i]
				play(t, s, sceneConfig(t, s, setup))
			})
			return nil
		})
	}
	_ = all.Wait() // there are no errors
}

const (
	setupSQLite   = "SQLite"
	setupPostgres = "PostgreSQL"
)

// sceneConfig returns the configuration of a new hub.
func sceneConfig(t *testing.T, s scene, setup string) hub.Config {
	t.Helper()
	c := hubConfig(t)
	if setup == setupSQLite {
		c.Catalog, c.Bucket = "", ""
	}
	if s.configure != nil {
		s.configure(&c)
	}
	return c
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

// wantUndisturbed fails the test unless a hub has what one has that did the same rounds
// undisturbed, and its stores are consistent.
func wantUndisturbed(t *testing.T, s scene, rounds int, c hub.Config, h *process) {
	t.Helper()
	undisturbed := startProcess(t, c)
	for round := range rounds + 1 {
		s.prepare(undisturbed, round)
		undisturbed.idle()
		work(t, s, round, undisturbed)
	}
	h.idle()
	wantSame(t, h.config, undisturbed.config)
	if got, want := h.trees(), undisturbed.trees(); !maps.Equal(got, want) {
		t.Errorf("the images have trees %v, want %v", got, want)
	}
	// A blob whose deletion was interrupted is locked for less than a minute.
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(time.Second) {
		got, want := h.stored(), undisturbed.stored()
		if slices.Equal(got, want) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the registry has %v, want %v", got, want)
			break
		}
		work(t, s, rounds, h)
	}
	if check := h.fsck(wire.Fsck{Deep: true}); check.Left() != 0 {
		t.Errorf("the stores differ: %s", findings(check))
	}
	t.Logf("%d steps", rounds)
}

// stored returns the files of the registry, but for uploads.
func (h *testHub) stored() []string {
	return slices.DeleteFunc(h.registryFiles(""), func(file string) bool { return strings.Contains(file, "_uploads") })
}

// trees returns the trees and states of all images, by name.
func (h *testHub) trees() map[string]string {
	h.t.Helper()
	images, err := h.client.Images(h.t.Context(), "")
	if err != nil {
		h.t.Fatal(err)
	}
	trees := map[string]string{}
	for _, i := range images {
		trees[i.Name+"@"+i.Digest] = i.State + " " + i.Tree
	}
	return trees
}

// A process that is stopped at any step of its work, for longer than its leases, changes nothing
// when it wakes up: another process has done the work.
func TestStoppedAtEachStep(t *testing.T) {
	t.Parallel()
	eachScene(t, setupPostgres, func(t *testing.T, s scene, c hub.Config) {
		dir := t.TempDir()
		a := startProcess(t, c, stepsEnv+"="+dir)
		second := c
		second.Root = t.TempDir()
		copyKey(t, c.Root, second.Root)
		names := withoutReads(stepsOf(t, s, a, dir))
		b := startProcess(t, second, stepsEnv+"="+t.TempDir())
		rounds := 0
		for i, name := range names {
			if i%6 != 0 && !soak {
				continue
			}
			rounds++
			s.prepare(b, rounds)
			b.idle()
			b.pause(true) // so that a gets the work
			reached := a.until(t, s, rounds, dir, "stop "+name)
			b.pause(false)
			work(t, s, rounds, b)
			if reached {
				if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
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
				h.pause(false)
			}
			work(t, s, round, h)
		}
		wantUndisturbed(t, s, len(names), sceneConfig(t, s, setupSQLite), h)
	})
}

// pause stops a process, or lets it go on.
func (p *process) pause(stop bool) {
	p.t.Helper()
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}
