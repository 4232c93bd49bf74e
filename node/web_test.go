package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node/fuse"
	"lighter/node/health"
)

func ask(t *testing.T, w *web, path string) (status int, body string) {
	t.Helper()
	out := httptest.NewRecorder()
	w.server.Handler.ServeHTTP(out, httptest.NewRequest(http.MethodGet, path, nil))
	return out.Code, out.Body.String()
}

func someWeb(t *testing.T, address string) *web {
	t.Helper()
	w, err := openWeb(t.Context(), address, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestHealthAndReadiness(t *testing.T) {
	w := someWeb(t, "127.0.0.1:0")
	defer w.close()
	want := func(path string, status int, words string) {
		t.Helper()
		if got, body := ask(t, w, path); got != status || !strings.Contains(body, words) {
			t.Errorf("%s: %d %q, want %d and %q", path, got, body, status, words)
		}
	}
	want("/healthz", 200, "ok")
	want("/readyz", 503, "starts")
	want("/metrics", 200, "go_goroutines")
	want("/debug/pprof/", 404, "")
	w.notReady("it recovers")
	want("/readyz", 503, "recovers")
	want("/healthz", 200, "ok")
	w.ready()
	want("/readyz", 200, "ok")
	n := &Node{health: health.New(t.TempDir(), unserved{})}
	w.show(n)
	want("/healthz", 503, "not answered")
	want("/readyz", 503, "not answered")
	n.health.Stop()
	want("/healthz", 200, "ok")
}

// unserved are devices whose connection has ended.
type unserved struct{}

func (unserved) Unserved() bool          { return true }
func (unserved) Stats() fuse.ServerStats { return fuse.ServerStats{} }

// The socket is root's alone, and it answers.
func TestWebOnASocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "w")
	w := someWeb(t, "unix:"+path)
	defer w.close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	res, err := client.Get("http://node/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "ok\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// That nobody can look at a node is no reason for it not to run.
func TestTakenAddressIsSaid(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w, err := openWeb(t.Context(), taken.Addr().String(), slog.New(slog.DiscardHandler))
	if w != nil || err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v, %v", w, err)
	}
	w.notReady("") // none of these minds
	w.ready()
	w.show(nil)
	w.close()
}
