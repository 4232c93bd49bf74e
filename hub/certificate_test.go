package hub_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/test/testkit/certificate"

	"lighter/hub"
)

// lockedBuffer is a buffer for a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A hub uses the current certificate in its files. If the new files are unusable, the hub logs an
// error and keeps the last good certificate.
func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := hubConfig(t)
	c.TLSCert, c.TLSKey = filepath.Join(dir, "hub.crt"), filepath.Join(dir, "hub.key")
	first, second := certificate.New(t, "first"), certificate.New(t, "second")
	first.Write(t, c.TLSCert, c.TLSKey)
	var log lockedBuffer
	h, err := hub.Open(t.Context(), c, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	shown := func() string {
		// The test checks the certificate's name only.
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within a minute; the hub uses %q, its log is\n%s", what, shown(), log.String())
			}
		}
	}
	if name := shown(); name != "first" {
		t.Fatalf("the hub uses the certificate of %q, want first", name)
	}
	second.Write(t, c.TLSCert, c.TLSKey)
	until("the second certificate is used", func() bool { return shown() == "second" })
	if err := os.WriteFile(c.TLSKey, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("the unusable pair is logged", func() bool {
		return shown() == "second" &&
			strings.Contains(log.String(), "cannot use changed files")
	})
	first.Write(t, c.TLSCert, c.TLSKey)
	until("the first certificate is used again", func() bool { return shown() == "first" })
	// It may be logged once more, between the writing of the two files.
	if n := strings.Count(log.String(), "cannot use changed files"); n > 2 {
		t.Errorf("the unusable pair is logged %d times, want at most twice", n)
	}
}
