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

// lockedBuffer is a log that tests read while it is written.
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

// A hub shows the certificate that its files hold now. A pair that is of no use leaves it
// the last good one, and is logged.
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
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true}) // what is shown is looked at
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
				t.Fatalf("%s: not in a minute; it shows %q, the log says\n%s", what, shown(), log.String())
			}
		}
	}
	if name := shown(); name != "first" {
		t.Fatalf("it shows %q", name)
	}
	second.Write(t, c.TLSCert, c.TLSKey)
	until("the second is shown", func() bool { return shown() == "second" })
	if err := os.WriteFile(c.TLSKey, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("that a pair is of no use is logged", func() bool { return shown() == "second" && strings.Contains(log.String(), "cannot be used") })
	first.Write(t, c.TLSCert, c.TLSKey)
	until("the first is shown again", func() bool { return shown() == "first" })
	if n := strings.Count(log.String(), "cannot be used"); n > 2 { // a pair is looked at between its files, too
		t.Errorf("it is logged %d times", n)
	}
}
