//go:build e2e

package hub_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/registry"
	"lighter/test/testkit/port"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
	"lighter/test/testkit/tarball"
	"lighter/test/testkit/wrongclock"
	"lighter/wire"
	"lighter/wire/client"
)

// processEnv has the configuration of the hub that this program runs as, if it is a child of a
// test.
const processEnv = "LIGHTER_TEST_HUB"

// processLease is how long the jobs and claims of a process that has stopped stay its own.
const processLease = 4 * time.Second

// stepsLease is the same where many processes are stopped, one after the other.
const stepsLease = 1500 * time.Millisecond

// clockEnv says by how much the clock of such a hub is wrong.
const clockEnv = "LIGHTER_TEST_CLOCK"

// shiftClock makes the clock of this process wrong.
func shiftClock() error {
	text := os.Getenv(clockEnv)
	if text == "" {
		return nil
	}
	by, err := time.ParseDuration(text)
	if err != nil {
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
	h.SetLeases(processLease)
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	h.Blobs().Delay, h.Jobs().RetryDelay = 0, time.Second
	if dir := os.Getenv(stepsEnv); dir != "" {
		h.SetLeases(stepsLease)
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
	first := hubConfig(t)
	a = startProcess(t, first)
	second := first
	second.Root = t.TempDir()
	copyKey(t, first.Root, second.Root)
	return a, startProcess(t, second)
}

// copyKey gives a further process of a hub its keys.
func copyKey(t *testing.T, from, to string) {
	t.Helper()
	key, err := os.ReadFile(hub.KeyFile(from))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hub.KeyFile(to), key, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantSame fails the test unless two hubs have the same in the end, and the bucket of the first one
// has what its catalog knows and nothing else. A process may still be cleaning up.
func wantSame(t *testing.T, got, want hub.Config) {
	t.Helper()
	var err error
	for range 100 {
		if err = compare(t, got, want); err == nil {
			return
		}
		time.Sleep(processLease / 10)
	}
	t.Error(err)
}

func compare(t *testing.T, got, want hub.Config) error {
	t.Helper()
	has, size := inventoryOf(t, got)
	if wanted, wantSize := inventoryOf(t, want); has != wanted || size > wantSize*11/10 {
		return fmt.Errorf("the hub has %+v in %d bytes of packs, want %+v in %d", has, size, wanted, wantSize)
	}
	c, err := catalog.Open(t.Context(), catalogOf(got))
	if err != nil {
		return err
	}
	defer c.Close()
	for _, key := range files(t, objectsDir(got)) {
		kind, name, _ := strings.Cut(key, "/")
		id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
		known := false
		switch {
		case err != nil:
		case kind == "packs":
			known, err = c.HasPack(t.Context(), id)
		case kind == "indexes":
			known, err = c.HasTree(t.Context(), id)
		case kind == "locations":
			known, err = c.Starts.HasLocations(t.Context(), id)
		case kind == "layers":
			known, _, err = c.HasLayer(t.Context(), "sha256:"+id.String(), "")
		}
		if err != nil || !known {
			return fmt.Errorf("the bucket has %s, which the catalog does not know (%v)", key, err)
		}
	}
	return nil
}

// inventoryOf returns what a catalog has, and the bytes of its packs.
func inventoryOf(t *testing.T, c hub.Config) (catalog.Inventory, int64) {
	t.Helper()
	opened, err := catalog.Open(t.Context(), catalogOf(c))
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	inventory, err := opened.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size, err := opened.Starts.PackBytes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inventory, size
}

// What one process has, the other one serves. An upload that begins at one ends at the other.
func TestProcessesAreOneHub(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	a.push("one:1", image(lowerTar, upperTar))
	got := b.ready("one:1")
	if _, chunks := b.fetchTree(got.Chain); len(chunks) == 0 {
		t.Error("the tree has no chunks")
	}
	blob := []byte(noise(9, 20_000))
	d := digest.FromBytes(blob)
	status, body, header := a.do("POST", "/v2/two/blobs/uploads/", nil)
	if status != http.StatusAccepted {
		t.Fatalf("begin an upload: %d %s", status, body)
	}
	to, err := url.Parse(header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	status, body, header = b.do("PATCH", to.RequestURI(), blob[:8000], "Content-Type", "application/octet-stream",
		"Content-Range", "0-7999")
	if status != http.StatusAccepted {
		t.Fatalf("go on at the other process: %d %s", status, body)
	}
	if to, err = url.Parse(header.Get("Location")); err != nil {
		t.Fatal(err)
	}
	q := to.Query()
	q.Set("digest", d.String())
	if status, body, _ = a.do("PUT", to.Path+"?"+q.Encode(), blob[8000:], "Content-Type",
		"application/octet-stream"); status != http.StatusCreated {
		t.Fatalf("end it at the first one: %d %s", status, body)
	}
	if status, body, _ = b.do("GET", "/v2/two/blobs/"+d.String(), nil); status != http.StatusOK ||
		!bytes.Equal(body, blob) {
		t.Errorf("the blob at the other process: %d, %d bytes", status, len(body))
	}
}

// A process with other keys would sign what nodes of the first one refuse. One without a key makes
// none.
func TestProcessWithAnotherKey(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	startProcess(t, c)
	c.Root = t.TempDir()
	if h, err := hub.Open(t.Context(), c, logOf(t)); err == nil || !strings.Contains(err.Error(), "is missing: restore it") {
		if err == nil {
			err = h.Close()
		}
		t.Errorf("opened without a key: %v, want an error that says to restore it", err)
	}
	if _, err := hub.Keys(c.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the keys of a process that has none: %v, want none", err)
	}
	if _, err := hub.AddKey(c.Root); err != nil {
		t.Fatal(err)
	}
	if h, err := hub.Open(t.Context(), c, logOf(t)); !errors.Is(err, catalog.ErrOtherKeys) {
		if err == nil {
			err = h.Close()
		}
		t.Errorf("opened with another key: %v, want ErrOtherKeys", err)
	}
}

// If a process is killed, or stopped for longer than its lease, the other one goes on with what it
// has accepted. One that wakes up again changes nothing.
func TestProcessesTakeOver(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := startProcesses(t)
			r := startRegistry(t, image(lowerTar, upperTar))
			r.user, r.password = "alice", "a word"
			held, release := r.holdBlobs(t)
			add := wire.Add{Source: r.source(), Name: "a:1", Username: r.user, Password: r.password}
			answered := make(chan error, 1)
			go func() {
				_, err := a.client.Add(context.Background(), add, func(wire.Progress) {})
				answered <- err
			}()
			<-held
			if err := a.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			release()
			images := b.settled("a:1")
			if len(images) != 1 || images[0].State != wire.StateReady {
				t.Fatalf("the other process has %+v, want it ready", images)
			}
			b.fetchTree(images[0].Chain)
			if signal == syscall.SIGSTOP {
				if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if err := <-answered; err != nil {
					t.Errorf("the client of the process that was stopped: %v", err)
				}
				a.fetchTree(a.ready("a:1").Chain)
			}
			b.idle()
			c := hubConfig(t)
			undisturbed := startProcess(t, c)
			if _, err := undisturbed.add(add); err != nil {
				t.Fatal(err)
			}
			wantSame(t, b.config, undisturbed.config)
		})
	}
}

// holdRequest is a proxy before the S3 server of a bucket. It holds the first request of a method
// whose path contains part, until release is called.
func holdRequest(
	t *testing.T, bucket, method, part string,
) (through string, held chan struct{}, release func()) {
	t.Helper()
	held, released := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	hold := sync.OnceFunc(func() {
		close(held)
		<-released
	})
	through, proxy, err := s3.Proxy(bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if req.Method == method && strings.Contains(req.URL.Path, part) {
			hold()
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	t.Cleanup(release)
	return through, held, release
}

// A process that is stopped while it publishes, for longer than its leases, does not publish when
// it wakes up: another process has done it.
func TestStoppedWhileItPublishes(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	slow := c
	var held chan struct{}
	var release func()
	slow.Bucket, held, release = holdRequest(t, c.Bucket, http.MethodPut, "/indexes/")
	a := startProcess(t, slow)
	second := c
	second.Root = t.TempDir()
	copyKey(t, c.Root, second.Root)
	b := startProcess(t, second)
	a.push("a:1", image(lowerTar, upperTar))
	<-held
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if images := b.settled("a:1"); len(images) != 1 || images[0].State != wire.StateReady {
		t.Fatalf("the other process has %+v, want it ready", images)
	}
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	release()
	b.idle()
	for _, p := range []*process{a, b} {
		p.fetchTree(p.ready("a:1").Chain)
	}
	undisturbed := startProcess(t, hubConfig(t))
	undisturbed.push("a:1", image(lowerTar, upperTar))
	undisturbed.ready("a:1")
	wantSame(t, b.config, undisturbed.config)
}

// While the database is away, what is in the bucket is served. Images that were accepted become
// ready when it is back.
func TestDatabaseIsAway(t *testing.T) {
	t.Parallel()
	database := postgres.Start(t)
	c := hubConfig(t)
	c.Catalog = database.Database(t)
	p := startProcess(t, c)
	p.push("before:1", image(upperTar))
	p.ready("before:1")
	pack, err := chunk.ParseID(strings.TrimPrefix(firstWith(files(t, objectsDir(c)), "packs/"), "packs/"))
	if err != nil {
		t.Fatal(err)
	}
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	<-held
	database.Kill()
	release()
	time.Sleep(awayTime())
	p.expect(wire.UnitPath(wire.DefaultDomain, chunk.Unit{Pack: pack}), http.StatusOK)
	if err := database.Run(); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Errorf("the waiting client: %v", err)
	}
	p.wantReady("a:1", r.manifest)
	undisturbed := startProcess(t, hubConfig(t))
	undisturbed.pushReady("before:1", image(upperTar))
	if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
		t.Fatal(err)
	}
	p.idle()
	wantSame(t, p.config, undisturbed.config)
}

// A process whose database does not answer ends after SIGTERM. What it was doing is done when it is
// started again.
func TestEndWithoutADatabase(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	proxy := postgres.StartProxy(t, c.Catalog, func() bool { return false })
	through := c
	through.Catalog = proxy.Source
	p := startProcess(t, through)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	<-held
	proxy.Silence()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the process has not ended after a minute")
	}
	<-added
	release()
	again := startProcess(t, c)
	again.wantReady("a:1", r.manifest)
}

// awayTime is how long a store is away: longer than the leases.
func awayTime() time.Duration {
	if soak {
		return time.Minute
	}
	return 2 * processLease
}

// While the bucket is away, accepted images wait.
func TestBucketIsAway(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	var away atomic.Bool
	through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	c.Bucket = through
	p := startProcess(t, c)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	<-held
	away.Store(true)
	release()
	time.Sleep(awayTime())
	away.Store(false)
	if err := <-added; err != nil {
		t.Errorf("the waiting client: %v", err)
	}
	p.wantReady("a:1", r.manifest)
	undisturbed := startProcess(t, hubConfig(t))
	if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
		t.Fatal(err)
	}
	p.idle()
	wantSame(t, p.config, undisturbed.config)
}

// While the bucket is away, a verification waits. An object that cannot be read from a bucket that
// answers is a problem of the image.
func TestVerificationWaitsForTheBucket(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	var mu sync.Mutex        // guards the following
	var from, refused string // parts of paths: the bucket is away from such a request on; refuses it
	away := false
	isAway := func(path string) bool {
		mu.Lock()
		defer mu.Unlock()
		away = away || from != "" && strings.Contains(path, from)
		return away || refused != "" && strings.Contains(path, refused)
	}
	set := func(newFrom, newRefused string) {
		mu.Lock()
		defer mu.Unlock()
		from, refused, away = newFrom, newRefused, false
	}
	through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if isAway(req.URL.Path) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	c.Bucket = through
	p := startProcess(t, c)
	p.push("a:1", image(lowerTar, upperTar))
	p.ready("a:1")
	p.idle()
	problems := func() string {
		found, err := p.client.Verify(t.Context(), "a:1", silent)
		if err != nil {
			t.Error(err)
		}
		return strings.Join(found.Problems, "\n")
	}
	for part, because := range map[string]error{
		"/_manifests/": registry.ErrUnavailable, "/layers/": objects.ErrUnavailable, "/packs/": objects.ErrUnavailable,
	} {
		set(part, "")
		done := make(chan string, 1)
		go func() { done <- problems() }()
		p.awaitRetry("verify", because)
		set("", "")
		if got := <-done; got != "" {
			t.Errorf("away from %s on: problems %s", part, got)
		}
	}
	set("", "/packs/")
	if got := problems(); !strings.Contains(got, "unit ") || !strings.Contains(got, objects.ErrUnavailable.Error()) {
		t.Errorf("problems %s, want the units of packs that cannot be read", got)
	}
}

// Two processes ingest images with a common new layer at once: it is split once.
func TestProcessesShareALayer(t *testing.T) {
	t.Parallel()
	a, b := startProcesses(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			p := []*process{a, b}[i%2]
			name := fmt.Sprintf("image-%d:1", i)
			p.push(name, image(lowerTar, tarball.Of(tarball.File("own", noise(uint64(20+i), 30_000)))))
			p.ready(name)
		})
	}
	all.Wait()
	a.idle()
	undisturbed := startProcess(t, hubConfig(t))
	for i := range 6 {
		name := fmt.Sprintf("image-%d:1", i)
		undisturbed.push(name, image(lowerTar, tarball.Of(tarball.File("own", noise(uint64(20+i), 30_000)))))
		undisturbed.ready(name)
	}
	wantSame(t, a.config, undisturbed.config)
}
