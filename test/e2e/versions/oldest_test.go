//go:build e2e

package versions

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/test/testkit/history"
	"lighter/test/testkit/site"
)

const migrations = "hub/catalog/migrations/sqlite"

// A hub that was built before the last migration that raises oldest refuses a catalog with this
// migration, says why, and changes nothing in it. A hub whose schema is not older than oldest is
// admitted.
func TestOldestSchema(t *testing.T) {
	today, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	before, since := aroundTheRaise(t)
	if before == "" || since == "" {
		t.Skip("history without the commits of the migrations")
	}
	root := t.TempDir()
	file := filepath.Join(root, "catalog.db")
	read := func() []byte {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := serve(t, today, root); err != nil {
		t.Fatal(err)
	}
	made := read()
	if err := serve(t, before, root); err == nil || !strings.Contains(err.Error(), "opened by a newer hub") ||
		!strings.Contains(err.Error(), file) {
		t.Errorf("a hub from before the migration: %v, want that it refuses %s and says why", err, file)
	}
	if !bytes.Equal(read(), made) {
		t.Error("a hub from before the migration has changed the catalog")
	}
	for name, lighter := range map[string]string{"a hub since the migration": since, "today's hub": today} {
		if err := serve(t, lighter, root); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// aroundTheRaise returns two builds: of the commit before the last migration that raises oldest, and
// of the last commit with an earlier schema than today's that oldest admits, or with the same if there
// is none.
func aroundTheRaise(t *testing.T) (before, since string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(history.Module(t), migrations, "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	raise := ""
	for _, file := range slices.Sorted(slices.Values(files)) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("'oldest'")) {
			raise = file
		}
	}
	commit := func(path string, flags ...string) string {
		t.Helper()
		args := append([]string{"log", "-1", "--format=%H"}, flags...)
		out, err := history.Git(t, append(args, "--", path)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	added, last := commit(raise, "--diff-filter=A"), commit(migrations)
	if slices.Max(files) != raise {
		last += "^"
	}
	return history.Build(t, added+"^"), history.Build(t, last)
}

// serve runs a hub until it is ready, and ends it. The error has its output.
func serve(t *testing.T, lighter, root string) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, lighter, "hub", "--root", root, "--listen", address)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if res, err := http.Get("http://" + address + "/readyz"); err == nil {
			_ = res.Body.Close()
			cancel()
			<-ended
			return nil
		}
		select {
		case err := <-ended:
			return errors.Join(err, errors.New(out.String()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
