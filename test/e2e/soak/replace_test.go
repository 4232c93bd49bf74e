//go:build e2e

package soak

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// A daemon that is too old for the kept state does not start, and prints what to do. Reads wait for
// a daemon that can read the state. After `lighter release`, the waiting reads fail.
func TestTooNewADaemon(t *testing.T) {
	newer := buildNewer(t, "99", "99")
	s, c := contained(t)
	s.Machine.KillNode()
	if err := s.Machine.LaunchNode(t.Context(), site.Launch{Lighter: newer}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Machine.Lighter(t.Context(), "release"); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("lighter release while a node runs: output %q, error %v; want an error with \"stop it\"", out, err)
	}
	path := filepath.Join(c.Root, "data")
	for _, release := range []bool{false, true} {
		s.Machine.KillNode()
		read := readAll(path)
		err := s.Machine.StartNode(t.Context())
		for _, word := range []string{"99", "newer lighter", "lighter release --root"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Fatalf("start of a daemon that is too old: %v, want an error with %q", err, word)
			}
		}
		select {
		case err := <-read:
			t.Fatalf("a read ended while no daemon ran (%v), want it to wait", err)
		case <-time.After(100 * time.Millisecond):
		}
		if !release {
			if err := s.Machine.LaunchNode(t.Context(), site.Launch{Lighter: newer}); err != nil {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Errorf("a read that waited for a newer daemon: %v", err)
			}
			continue
		}
		if _, err := s.Machine.Lighter(t.Context(), "release"); err != nil {
			t.Error(err)
		}
		if err := <-read; !errors.Is(err, unix.EIO) {
			t.Errorf("a waiting read after lighter release: %v, want EIO", err)
		}
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("data"), "wc", "-c", "/data"); err != nil ||
		!strings.HasPrefix(ran.Output, "50331648 ") {
		t.Errorf("wc in a new container: output %q, error %v; want %d bytes", ran.Output, err, dataSize)
	}
}

func startSite(t *testing.T) *site.Site {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return sitetest.Start(t, site.Options{Lighter: lighter})
}

// contained starts a site, and a container whose image has a large file, /data.
func contained(t *testing.T) (*site.Site, *site.Container) {
	t.Helper()
	s := startSite(t)
	ref := site.Reference(addData(t, s))
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
		t.Fatal(err)
	}
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

// readAll empties the page cache and reads a file, in the background. The channel gets the error of
// the read, or nil.
func readAll(path string) <-chan error {
	read := make(chan error, 1)
	go func() {
		err := site.DropCaches()
		if err == nil {
			_, err = os.ReadFile(path)
		}
		read <- err
	}()
	return read
}
