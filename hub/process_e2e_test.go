//go:build e2e

package hub_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"modernc.org/sqlite"

	"lighter/hub"
	"lighter/hub/rootdir"
	"lighter/test/testkit/port"
	"lighter/test/testkit/s3"
	"lighter/test/testkit/wrongclock"
	"lighter/wire"
	"lighter/wire/client"
)

// processEnv has the configuration of the hub that this program runs as, if it is a child of a
// test.
const processEnv = "LIGHTER_TEST_HUB"

// processLease is how long the jobs and claims of a process that has stopped stay its own.
const processLease = 4 * time.Second

// stepsLease and stepsClaimLease are the same of jobs, and of claims of objects, where many
// processes are stopped, one after the other. They are in the proportion of a real hub's.
const (
	stepsLease      = 1500 * time.Millisecond
	stepsClaimLease = 4 * stepsLease
)

// clockEnv says by how much the clock of such a hub is wrong.
const clockEnv = "LIGHTER_TEST_CLOCK"

// shiftClock makes the clock of this process wrong, and of its SQLite database.
func shiftClock() error {
	text := os.Getenv(clockEnv)
	if text == "" {
		return nil
	}
	by, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	// SQLite asks the kernel, and not the vDSO that Shift changes.
	if err := sqlite.RegisterScalarFunction("unixepoch", 1,
		func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
			return float64(time.Now().UnixMilli()) / 1000, nil
		}); err != nil {
		return err
	}
	return wrongclock.Shift(by)
}

// runProcess runs a hub until SIGTERM.
func runProcess(config string) error {
	var c hub.Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	h, err := hub.Open(ctx, c, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	defer h.Close()
	h.SetLeases(processLease, processLease)
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	h.Blobs().Delay, h.Jobs().RetryDelay = 0, time.Second
	h.Pushes().MinBytes = 1000
	if os.Getenv(clockEnv) != "" {
		h.Blobs().Delay = 5 * time.Minute // collections run beside pushes, whose blobs no image names yet
	}
	if dir := os.Getenv(stepsEnv); dir != "" {
		h.SetLeases(stepsLease, stepsClaimLease)
		h.Blobs().Lease = 2 * stepsLease
		watchSteps(h, dir)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	return h.Serve(ctx, listener)
}

// process is a hub in a process of its own.
type process struct {
	*testHub
	cmd *exec.Cmd
}

// startProcess runs a process of a hub until the test ends, with some more environment variables.
func startProcess(t *testing.T, c hub.Config, env ...string) *process {
	t.Helper()
	return startProgram(t, c, func(c hub.Config) *exec.Cmd {
		config, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = slices.Concat(os.Environ(), env, []string{processEnv + "=" + string(config)})
		return cmd
	})
}

// startProgram runs the program of a hub with a configuration until the test ends.
func startProgram(t *testing.T, c hub.Config, program func(hub.Config) *exec.Cmd) *process {
	t.Helper()
	var err error
	if c.Listen, err = port.Loopback(); err != nil {
		t.Fatal(err)
	}
	p := &process{testHub: &testHub{t: t, url: "http://" + c.Listen, config: c}, cmd: program(c)}
	if p.client, err = client.New(client.Options{URL: p.url}); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if b, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("log of %s:\n%s", c.Listen, b)
		}
	})
	for range 6000 {
		if res, err := http.Get(p.url + "/readyz"); err == nil {
			_ = res.Body.Close()
			return p
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the process does not answer")
	return nil
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// startProcesses runs two processes of one hub, each with a directory of its own.
func startProcesses(t *testing.T) (a, b *process) {
	t.Helper()
	c := hubConfig(t)
	a = startProcess(t, c)
	return a, startProcess(t, further(t, c))
}

// further returns the configuration of a further process of a hub: it has the keys of the first
// one, and a directory of its own.
func further(t *testing.T, c hub.Config) hub.Config {
	t.Helper()
	key, err := os.ReadFile(rootdir.Key(c.Root))
	if err != nil {
		t.Fatal(err)
	}
	c.Root = t.TempDir()
	if err := os.WriteFile(rootdir.Key(c.Root), key, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

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

// signal sends a signal to a process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
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

// clock returns the time of a process, since 1970.
func (p *process) clock() time.Duration {
	p.t.Helper()
	res, err := http.Get(p.url + "/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	_ = res.Body.Close()
	at, err := http.ParseTime(res.Header.Get("Date"))
	if err != nil {
		p.t.Fatal(err)
	}
	return time.Duration(at.UnixNano())
}

// refuseRequests returns the configuration of a hub whose requests to its bucket pass through a
// proxy. The proxy answers 503 to those for which refuses returns true.
func refuseRequests(t *testing.T, c hub.Config, refuses func(*http.Request) bool) hub.Config {
	t.Helper()
	through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if refuses(req) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
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

// holdRequest returns the configuration of a hub whose requests to its bucket pass through a proxy.
// The proxy holds the first request that isHeld accepts, until release is called.
func holdRequest(
	t *testing.T, c hub.Config, isHeld func(*http.Request) bool,
) (through hub.Config, held chan struct{}, release func()) {
	t.Helper()
	held, released := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	hold := sync.OnceFunc(func() {
		close(held)
		<-released
	})
	through = refuseRequests(t, c, func(req *http.Request) bool {
		if isHeld(req) {
			hold()
		}
		return false
	})
	t.Cleanup(release)
	return through, held, release
}

// puts accepts requests that store an object whose key contains part.
func puts(part string) func(*http.Request) bool {
	return func(req *http.Request) bool {
		return req.Method == http.MethodPut && strings.Contains(req.URL.Path, part)
	}
}

// deletes accepts requests that delete an object whose key contains part: alone, or in a batch,
// whose keys are in the body of the request.
func deletes(part string) func(*http.Request) bool {
	return func(req *http.Request) bool {
		if req.Method == http.MethodDelete {
			return strings.Contains(req.URL.Path, part)
		}
		if req.Method != http.MethodPost || !req.URL.Query().Has("delete") {
			return false
		}
		keys, err := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(keys))
		return err == nil && bytes.Contains(keys, []byte(part))
	}
}
