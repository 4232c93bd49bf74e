//go:build e2e

package node

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/node/keeper"
	"lighter/test/testkit/eventually"
)

// get sends a GET request to the node at an address.
func get(t *testing.T, address, path string) (status int, body string) {
	t.Helper()
	res, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// metric returns the value of the metric lighter_node_NAME. name includes the labels as they are
// printed.
func metric(t *testing.T, address, name string) float64 {
	t.Helper()
	_, body := get(t, address, "/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "lighter_node_"+name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("the metrics do not contain lighter_node_%s:\n%s", name, body)
	return 0
}

// freeAddress returns a TCP address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// The metrics count a node's work, and the trees that the next node took over.
func TestMetrics(t *testing.T) {
	address := freeAddress(t)
	d := startNode(t, newRoot(t), "--address", "", "--http-address", address)
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(t, address, path); status != 200 || body != "ok\n" {
			t.Errorf("%s answers %d %q, want 200 ok", path, status, body)
		}
	}
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	defer run(t, "unmount", "--root", d.root, dir)
	shows(t, dir)
	for name, atLeast := range map[string]float64{
		`read_bytes_total{origin="hub"}`: 1 << 16, `fault_duration_seconds_count{origin="hub"}`: 1,
		`fault_duration_seconds_sum{origin="hub"}`: 1e-6,
		`mounts{mode="file"}`:                      1, `cache_bytes`: 1 << 20, `unit_requests_total`: 1,
		`unit_received_bytes_total`: 1 << 20, `ready`: 1,
	} {
		if got := metric(t, address, name); got < atLeast {
			t.Errorf("%s is %v, want at least %v", name, got, atLeast)
		}
	}
	for _, name := range []string{`failed_reads_total{reason="origin"}`, "verification_failures_total",
		"reads_in_flight", "taken_over"} {
		if got := metric(t, address, name); got != 0 {
			t.Errorf("%s is %v, want 0", name, got)
		}
	}
	d.end(syscall.SIGKILL)
	startNode(t, d.root, "--address", "", "--http-address", address)
	if got := metric(t, address, "taken_over"); got != 1 {
		t.Errorf("taken_over is %v, want 1", got)
	}
}

// A node is ready from the end of recovery until it begins to stop, and its HTTP address answers
// all the time. In this test the recovery waits for a lock that the test holds, and the stop waits
// for a request of the test.
func TestReadiness(t *testing.T) {
	root, address := newRoot(t), freeAddress(t)
	db := filepath.Join(root, "snapshots/metadata.db")
	if err := os.MkdirAll(filepath.Dir(db), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(db)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, root: root, log: filepath.Join(t.TempDir(), "node.log")}
	if d.cmd, err = background(d.log, "node", "--root", root, "--address", filepath.Join(root, "s"), "--http-address",
		address, "--log-format", "json"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd != nil {
			d.end(syscall.SIGKILL)
		}
	})
	eventually.Holds(t, "a listener at the HTTP address", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	ready := func() bool { status, _ := get(t, address, "/readyz"); return status == 200 }
	if ready() || strings.Contains(d.said(), "node is ready") {
		t.Error("the node is ready before it has recovered its trees")
	}
	if status, body := get(t, address, "/healthz"); status != 200 {
		t.Errorf("/healthz answers %d %q during recovery, want 200", status, body)
	}
	lock.Close()
	eventually.Holds(t, "readiness", ready)

	request, err := net.Dial("unix", filepath.Join(root, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer request.Close()
	if _,
		err := request.Write([]byte("POST /unmount HTTP/1.1\r\nHost: control\r\nContent-Length: 100\r\n" +
		"Expect: 100-continue\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := request.Read(make([]byte, 100)); err != nil { // "100 Continue": the server waits for the body
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the end of readiness", func() bool {
		status, body := get(t, address, "/readyz")
		return status == 503 && strings.Contains(body, "stops")
	})
	request.Close()
	_ = d.cmd.Wait() // other tests check the exit code
	d.cmd = nil
	for line := range strings.Lines(d.said()) {
		var entry struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" ||
			entry.Msg == "" {
			t.Errorf("the log has the line %q (%v), want JSON with time, level and msg", line, err)
		}
	}
}

// The password in a hub's URL is not in the log, the status, the metrics or an error, even if the
// hub redirects or fails.
func TestNoSecretIsSaid(t *testing.T) {
	const secret = "the-secret-password"
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != secret && r.URL.Path != "/elsewhere" {
			t.Errorf("the hub got the password %q, want that of its URL", password)
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/key"):
			panic(http.ErrAbortHandler)
		case strings.Contains(r.URL.Path, "/images"):
			http.Redirect(w, r, "http://"+r.Host+"/elsewhere?signature="+secret, http.StatusFound)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer hub.Close()
	url := "http://somebody:" + secret + "@" + strings.TrimPrefix(hub.URL, "http://")
	address := freeAddress(t)
	d := startNode(t, newRoot(t), "--address", "", "--hub", url, "--log-level", "debug", "--http-address", address)
	mounted := run(t, "mount", "--root", d.root, "tools:1", t.TempDir())
	mounted.bad(1, "hub")
	images := run(t, "images", "--hub", url)
	images.bad(1, "hub")
	_, metrics := get(t, address, "/metrics")
	said := []string{mounted.stderr, images.stderr, run(t, "status", "--root", d.root).good(),
		run(t, "status", "--json", "--root", d.root).good(),
		run(t, "images", "--hub", "ftp://somebody:"+secret+"@hub").stderr,
		run(t, "node", "--hub", "ftp://somebody:"+secret+"@hub", "--root", newRoot(t)).stderr, metrics}
	d.end(syscall.SIGTERM)
	for _, text := range append(said, d.said()) {
		for _, s := range []string{secret, base64.StdEncoding.EncodeToString([]byte("somebody:" + secret))} {
			if strings.Contains(text, s) {
				t.Errorf("%q is in the output %s", s, text)
			}
		}
	}
}

// A daemon that answers HTTP but not the kernel is not healthy. In this test another reader takes
// the kernel's requests. So the daemon has no unanswered read, and only its probe fails.
func TestHealthIsTheKernels(t *testing.T) {
	address := freeAddress(t)
	d := startNode(t, newRoot(t), "--address", "", "--http-address", address)
	files, _, err := (keeper.Process{Root: d.root}).Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	connection := int(files[0].Fd())
	for range 64 { // the readers end with the connection
		go func() {
			for request := make([]byte, 2<<20); ; {
				_, err := unix.Read(connection, request)
				if err != nil && err != unix.EAGAIN && err != unix.EINTR {
					return
				}
			}
		}()
	}
	eventually.Holds(t, "an unhealthy status", func() bool {
		status, body := get(t, address, "/healthz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "do not answer")
	})
	runtime.KeepAlive(files)
	d.end(syscall.SIGKILL) // possible although the kernel waits for an answer
	run(t, "release", "--root", d.root).good()
}
