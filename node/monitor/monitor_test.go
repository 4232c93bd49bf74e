package monitor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/socketdir"
)

func ask(t *testing.T, s *Server, path string) (status int, body string) {
	t.Helper()
	out := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(out, httptest.NewRequest(http.MethodGet, path, nil))
	return out.Code, out.Body.String()
}

func someServer(t *testing.T, address string) *Server {
	t.Helper()
	s, err := Open(t.Context(), address, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHealthAndReadiness(t *testing.T) {
	s := someServer(t, "127.0.0.1:0")
	defer s.Close()
	want := func(path string, status int, words string) {
		t.Helper()
		if got, body := ask(t, s, path); got != status || !strings.Contains(body, words) {
			t.Errorf("%s: got %d %q, want %d with %q", path, got, body, status, words)
		}
	}
	want("/healthz", 200, "ok")
	want("/readyz", 503, "starts")
	want("/metrics", 200, "go_goroutines")
	want("/debug/pprof/", 404, "")
	s.NotReady("it recovers")
	want("/readyz", 503, "recovers")
	want("/healthz", 200, "ok")
	s.Ready()
	want("/readyz", 200, "ok")
	failure := errors.New("reads are not answered")
	s.Show(Node{Healthy: func(context.Context) error { return failure }})
	want("/healthz", 503, "not answered")
	want("/readyz", 503, "not answered")
	failure = nil
	want("/healthz", 200, "ok")
	want("/readyz", 200, "ok")
}

// Only root may use the socket.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(socketdir.New(t), "s")
	s := someServer(t, "unix:"+path)
	defer s.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want mode 0600", info, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
	res, err := client.Get("http://node/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "ok\n" {
		t.Errorf("got %q, %v; want ok", b, err)
	}
}

// If the address is in use, Open returns an error and a server that can still be used, without
// clients.
func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s, err := Open(t.Context(), taken.Addr().String(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v, want an error with \"in use\"", err)
	}
	s.NotReady("")
	s.Ready()
	s.Show(Node{})
	s.Close()
}
