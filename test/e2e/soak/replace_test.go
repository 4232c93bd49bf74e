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
)

// A daemon cannot take over a state of a newer version. It prints what to do, and reads wait for a
// daemon that can read the state. After `lighter release`, reads fail.
func TestTooNewADaemon(t *testing.T) {
	newer := buildNewer(t, "99", "99")
	s, c := contained(t)
	s.Machine.KillNode()
	if err := s.Machine.LaunchNode(t.Context(), site.Launch{Lighter: newer}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Machine.Lighter(t.Context(), "release"); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("release while a node runs: %q, %v", out, err)
	}
	path := filepath.Join(c.Root, "data")
	for _, giveUp := range []bool{false, true} {
		s.Machine.KillNode()
		read := readAll(path)
		err := s.Machine.StartNode(t.Context())
		for _, word := range []string{"99", "newer lighter", "lighter release --root"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Fatalf("the error of an older daemon does not contain %q: %v", word, err)
			}
		}
		select {
		case err := <-read:
			t.Fatalf("the read ended before the release: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if !giveUp {
			if err := s.Machine.LaunchNode(t.Context(), site.Launch{Lighter: newer}); err != nil {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Error(err)
			}
			continue
		}
		if _, err := s.Machine.Lighter(t.Context(), "release"); err != nil {
			t.Error(err)
		}
		if err := <-read; !errors.Is(err, unix.EIO) {
			t.Errorf("a read after the release: %v, want an error", err)
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
		t.Errorf("a new container: %q, %v", ran.Output, err)
	}
}

func startSite(t *testing.T) *site.Site {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Start(t.Context(), site.Options{Lighter: lighter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// contained is a site with a container of an image with a large file, /data.
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

// readAll reads a file in the background, and returns the result.
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
