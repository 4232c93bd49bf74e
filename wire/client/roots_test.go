package client_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"lighter/test/testkit/certificate"
	"lighter/wire/client"
)

// A client trusts the certificates that its file has now. An invalid file changes nothing.
func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	first, second := certificate.New(t, "first"), certificate.New(t, "second")
	var shown atomic.Pointer[tls.Certificate]
	show := func(c certificate.Certificate) { pair := c.Pair(t); shown.Store(&pair) }
	show(first)
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") }
	server := httptest.NewUnstartedServer(http.HandlerFunc(answer))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}}, nil
	}}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // handshakes are to fail
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	trust := func(pem []byte) {
		t.Helper()
		if err := os.WriteFile(file, pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(first.Cert)
	c := newClient(t, client.Options{URL: server.URL, CAFile: file})
	ask := func() error {
		server.CloseClientConnections() // so that each request has a handshake
		_, err := c.Images(t.Context(), "")
		return err
	}
	until := func(what string, is func(err error) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			err := ask()
			if is(err) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("want that %s, within a minute; the last request: %v", what, err)
			}
		}
	}
	works := func(err error) bool { return err == nil }
	until("the first is trusted", works)
	show(second)
	if err := ask(); err == nil {
		t.Fatal("a certificate that is not in the file is trusted, want an error")
	}
	trust(second.Cert)
	until("the second is trusted", works)
	trust([]byte("no certificate"))
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		until("the second is trusted while the file is invalid", works)
	}
	trust(first.Cert)
	until("the second is no longer trusted", func(err error) bool { return err != nil })
	show(first)
	until("the first is trusted again", works)
}
