//go:build runtimes

package buildkit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/site"
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// shared is the builder that most tests share. Its site's hub has the images base and python.
var shared *builder

func prepare() (stop func() error, err error) {
	ctx := context.Background()
	s, err := startSite(ctx, site.Options{})
	if err != nil {
		return nil, err
	}
	if shared, err = newBuilder(ctx, s, filepath.Join(s.Dir, "buildkit"), lazy(s)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return func() error { return errors.Join(shared.stop(), s.Close()) }, nil
}

// received runs fn, and returns the number of bytes that the machine received over the link
// meanwhile.
func received(t *testing.T, s *site.Site, fn func()) int64 {
	t.Helper()
	before, err := s.Machine.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	fn()
	after, err := s.Machine.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return after - before
}

func status(t *testing.T, s *site.Site) report.Status {
	t.Helper()
	var st report.Status
	if err := s.Machine.NodeStatus(t.Context(), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// A build step on a lazy image reads the image's files. It downloads no layer.
func TestFromIsLazy(t *testing.T) {
	ref := site.Reference("python")
	var out string
	moved := received(t, shared.site, func() {
		out = shared.output(t, "FROM "+ref+" AS run\nRUN python3 /app/hello.py > /out\n"+
			"FROM scratch\nCOPY --from=run /out /\n")
	})
	t.Logf("received %d bytes; status %+v", moved, status(t, shared.site).Images)
	if out != "hello\n" {
		t.Errorf("the build printed %q, want hello", out)
	}
}
