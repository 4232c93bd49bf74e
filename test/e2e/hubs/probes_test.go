//go:build e2e

package hubs

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/port"
	"lighter/test/testkit/postgres"
	"lighter/test/testkit/s3"
	"lighter/test/testkit/site"
	"lighter/wire"
)

// program is a process of a hub without a site: the program as it is released.
type program struct {
	t                  *testing.T
	url, root, logFile string
	cmd                *exec.Cmd
	ended              chan struct{} // closed when the process has ended
}

// startHub starts the program of a hub with a configuration. If key is not empty, it is the file of
// the signing keys.
func startHub(t *testing.T, config, key string) *program {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	address, err := port.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &program{t: t, url: "http://" + address, root: filepath.Join(dir, "root"),
		logFile: filepath.Join(dir, "log"), ended: make(chan struct{})}
	if key != "" {
		text, err := os.ReadFile(key)
		if err := errors.Join(err, os.Mkdir(p.root, 0o700),
			os.WriteFile(filepath.Join(p.root, "hub.key"), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(p.logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(lighter, "hub", "--config", configFile(t, config), "--root", p.root, "--listen", address)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("the log of %s:\n%s", p.url, p.log())
		}
	})
	return p
}

func (p *program) log() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// get returns the status and the text of an answer; 0 if there is none.
func (p *program) get(path string) (status int, text string) {
	res, err := http.Get(p.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// wants waits until a path has an answer with a status and all of the texts.
func (p *program) wants(path string, status int, texts ...string) {
	p.t.Helper()
	var last string
	deadline := time.Now().Add(time.Minute)
next:
	for {
		got, text := p.get(path)
		last = fmt.Sprint(got, " ", text)
		if time.Now().After(deadline) {
			p.t.Fatalf("GET %s: %s, want %d and %q", path, last, status, texts)
		}
		time.Sleep(50 * time.Millisecond)
		if got != status {
			continue
		}
		for _, want := range texts {
			if !strings.Contains(text, want) {
				continue next
			}
		}
		return
	}
}

// lighter runs a command of a client, and returns its output.
func (p *program) lighter(command string, args ...string) string {
	p.t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(lighter, append(strings.Fields(command), append([]string{"--hub", p.url}, args...)...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("lighter %s: %v: %s", command, err, &errs)
	}
	return string(out)
}

// The probes of Kubernetes: a process of a hub is alive as long as it answers. Its readiness names
// the store that is away. A process without the bucket is not ready; without the database it is, as
// it serves units. The log has a few lines about each outage, however many requests fail.
func TestProbesNameTheStoreThatIsAway(t *testing.T) {
	server := postgres.Start(t)
	var away atomic.Bool
	p := startHub(t, production(newCatalog(t, server), unstableBucket(t, &away)), "")
	p.wants("/readyz", 200, "ok\n", "database: ok\n", "bucket: ok\n", "disk: ok\n")
	p.lighter("add", "oci:"+image(t, 0, 2)+":latest", "prod:1")

	requests := func(path string, n int) {
		for range n {
			p.get(path)
		}
	}
	server.Kill()
	requests("/lighter/1/default/images", 50)
	p.wants("/readyz", 200, "ok\n", "database: away for ", "the database is not available", "bucket: ok\n")
	p.wants("/metrics", 200, `lighter_hub_store_up{store="database"} 0`, `lighter_hub_store_up{store="bucket"} 1`)
	requests("/lighter/1/default/images", 50)
	time.Sleep(5 * time.Second) // jobs are looked for in vain
	if err := server.Run(); err != nil {
		t.Fatal(err)
	}
	p.wants("/readyz", 200, "database: ok\n")

	away.Store(true)
	verify := exec.CommandContext(t.Context(), p.cmd.Path, "verify", "--hub", p.url, "prod:1")
	if err := verify.Start(); err != nil {
		t.Fatal(err)
	}
	requests("/v2/prod/manifests/1", 5)
	p.wants("/readyz", 503, "not ready\n", "database: ok\n", "bucket: away for ", "the bucket is not available")
	p.wants("/healthz", 200, "ok\n")
	requests("/v2/prod/manifests/1", 5)
	eventually.Holds(t, "the reason of the job that waits, without empty details of the SDK", func() bool {
		for _, j := range jsonOf[[]wire.Job](t, p.lighter("jobs", "--json")) {
			if j.Kind == "verify" && strings.Contains(j.Error, " is not available: ") {
				if strings.Contains(j.Error, "RequestID") || len(j.Error) > 400 {
					t.Errorf("the reason of the job that waits is %q, want a short one", j.Error)
				}
				return true
			}
		}
		return false
	})
	away.Store(false)
	_ = verify.Wait() // this test is not about what it has found
	p.wants("/readyz", 200, "bucket: ok\n")

	var loud []string
	for line := range strings.Lines(p.log()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			loud = append(loud, line)
		}
	}
	const most = 8 // a line about each outage, the first failed request, and two races with the checks
	if len(loud) > most {
		t.Errorf("the log has %d warnings and errors about two outages, want %d at most:\n%s", len(loud), most,
			strings.Join(loud, ""))
	}
	for _, want := range []string{`away" store=database`, `back" store=database`, `away" store=bucket`,
		`back" store=bucket`} {
		if n := strings.Count(p.log(), `msg="a store of the hub is `+want); n != 1 {
			t.Errorf("the log has %d lines with %s, want 1", n, want)
		}
	}
}

// A hub whose database is being migrated does not listen yet, so a start-up probe fails and is made
// again. The hub is ready afterwards. SIGTERM ends it before that, too.
func TestStartWaitsForAMigration(t *testing.T) {
	catalog := newCatalog(t, database)
	db, err := sql.Open("pgx", catalog)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context()) // the lock is one of the connection
	if err != nil {
		t.Fatal(err)
	}
	const lock = 4097083626 // goose's DefaultLockID
	if _, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock($1)`, lock); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`).Scan(&n)
		return err == nil && n > 0
	}
	if !waits() {
		t.Fatal("the lock of migrations is not held")
	}
	config := production(catalog, newBucket(t))
	p, ends := startHub(t, config, ""), startHub(t, config, "")
	time.Sleep(3 * time.Second) // for a try to get the lock
	for _, h := range []*program{p, ends} {
		select {
		case <-h.ended:
			t.Fatal("the hub has ended while another one migrates the database")
		default:
		}
		if status, text := h.get("/healthz"); status != 0 {
			t.Errorf("/healthz during a migration: %d %s, want no connection", status, text)
		}
	}
	if err := ends.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ends.ended
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil { // the pool would keep the connection with its lock
		t.Fatal(err)
	}
	p.wants("/readyz", 200, "database: ok\n")
}

// heldBucket makes an empty bucket, and returns its URL through a proxy that holds uploads of packs
// until release is called. held is closed when the first one is held.
func heldBucket(t *testing.T) (bucket string, held chan struct{}, release func()) {
	t.Helper()
	held, released := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held) })
	through, proxy, err := s3.Proxy(newBucket(t), func(w http.ResponseWriter, req *http.Request,
		forward http.HandlerFunc) {
		if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/packs/") {
			hold()
			select {
			case <-released:
			case <-req.Context().Done():
			}
		}
		forward(w, req)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return through, held, release
}

// A process of a hub gets SIGTERM while it receives an upload and runs a job. It accepts no further
// connections, completes the upload, and ends. When it has ended, its job is free: another process
// runs it, and does not wait for the end of a lease.
func TestEndOfAProcess(t *testing.T) {
	bucket, held, release := heldBucket(t)
	config := production(newCatalog(t, database), bucket)
	config = "drain_seconds = 120\n" + config
	first := startHub(t, config, "")
	first.wants("/readyz", 200)
	if out, err := exec.Command("skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
		"oci:"+image(t, 0, 4)+":latest",
		"docker://"+strings.TrimPrefix(first.url, "http://")+"/prod:1").CombinedOutput(); err != nil {
		t.Fatalf("push: %v: %s", err, out)
	}
	<-held
	second := startHub(t, config, filepath.Join(first.root, "hub.key"))
	second.wants("/readyz", 200)
	job := func() wire.Job {
		t.Helper()
		for _, j := range jsonOf[[]wire.Job](t, second.lighter("jobs", "--json")) {
			if j.Kind == "image" {
				return j
			}
		}
		t.Fatal("the image has no job")
		return wire.Job{}
	}
	before := job()
	if before.State != wire.JobRunning {
		t.Fatalf("the job %+v, want one that runs", before)
	}

	// An upload in two halves.
	started, err := http.Post(first.url+"/v2/prod/blobs/uploads/", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = started.Body.Close()
	at, err := started.Location()
	if err != nil {
		t.Fatal(err)
	}
	body, send := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, at.String(), body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	// The client waits until the process reads the body. A process that ends closes connections on
	// which no request has arrived.
	req.Header.Set("Expect", "100-continue")
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	patched := make(chan error, 1)
	go func() {
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusAccepted {
				err = errors.New(res.Status)
			}
		}
		patched <- err
	}()
	if _, err := send.Write(content(1)); err != nil {
		t.Fatal(err)
	}
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the end of the listener", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(first.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	eventually.Holds(t, "the job's end in the first process", func() bool {
		j := job()
		return j.State != wire.JobRunning || j.Owner != before.Owner
	})
	select {
	case <-first.ended:
		t.Fatal("the process has ended before the upload was complete")
	case err := <-patched:
		t.Fatalf("the upload has ended too early: %v", err)
	default:
	}
	time.Sleep(7 * time.Second) // longer than the default of drain_seconds
	if _, err := send.Write(content(2)); err != nil {
		t.Fatal(err)
	}
	_ = send.Close() // always returns nil
	if err := <-patched; err != nil {
		t.Errorf("the upload that was in flight at the end of its process: %v", err)
	}
	<-first.ended
	if code := first.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the process has ended with %v, want exit code 0", first.cmd.ProcessState)
	}
	release()
	eventually.Holds(t, "the image to be ready", func() bool {
		for _, i := range jsonOf[[]wire.Image](t, second.lighter("images", "--json")) {
			return i.State == wire.StateReady
		}
		return false
	})
	second.lighter("fsck", "--deep")
}
