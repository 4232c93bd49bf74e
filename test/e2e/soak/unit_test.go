//go:build e2e

package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/history"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// unit returns the text of a systemd unit that we ship.
func unit(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(history.Module(t), "deploy/systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSystemdAcceptsUnits(t *testing.T) {
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lighter-node.service", "lighter-hub.service"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(unit(t, name), "/usr/local/bin/lighter", lighter)),
			0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			// Debian 12's systemd does not know this setting and ignores it.
			if strings.Contains(line, name) && !strings.Contains(line, "'FileDescriptorStorePreserve'") {
				t.Error(line)
			}
		}
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// The node needs no other capabilities than those that its unit allows.
func TestCapabilities(t *testing.T) {
	var allowed []string
	for line := range strings.Lines(unit(t, "lighter-node.service")) {
		if value, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			allowed = strings.Fields(strings.ToLower(strings.ReplaceAll(value, "CAP_", "+")))
		}
	}
	if len(allowed) == 0 {
		t.Fatal("the unit does not restrict the node's capabilities")
	}
	restricted := site.Launch{Wrap: []string{"setpriv", "--no-new-privs", "--bounding-set",
		"-all," + strings.Join(allowed, ",")}}
	s, c := contained(t) // its node has all capabilities; a restricted node replaces it below
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	// The hub does not know this image.
	if err := s.Push(t.Context(), filepath.Join(work, "images/base"), "base"); err != nil {
		t.Fatal(err)
	}
	s.Machine.KillNode()
	if err := s.Machine.LaunchNode(t.Context(), restricted); err != nil {
		t.Fatal(err)
	}
	if err := <-readAll(filepath.Join(c.Root, "data")); err != nil {
		t.Errorf("a read from the restricted node: %v", err)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("data")); err != nil {
		t.Error(err)
	}
	for _, mode := range []string{"loop", "file"} {
		restricted.Args = []string{"--mount-mode", mode}
		if err := s.Machine.StopNode(); err != nil { // so that the restricted node mounts the devices
			t.Error(err)
		}
		if err := s.Machine.LaunchNode(t.Context(), restricted); err != nil {
			t.Fatal(err)
		}
		useImages(t, s)
	}
	dir := t.TempDir()
	if _, err := s.Machine.Lighter(t.Context(), "mount", "--hub", s.Hub.URL, "data:latest", dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err != nil {
		t.Error(err)
	}
	if _, err := s.Machine.Lighter(t.Context(), "unmount", dir); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"[0-9]*", "rm-*", "new-*"} {
		if left, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "snapshots", pattern)); err != nil ||
			len(left) > 0 {
			t.Errorf("directories of snapshots after all images were removed: %v (%v), want none", left, err)
		}
	}
	if log, err := os.ReadFile(s.Machine.NodeLog()); err != nil || strings.Contains(string(log), "level=ERROR") ||
		t.Failed() {
		t.Errorf("the log of all nodes (%v), which must have no errors:\n%s", err, log)
	}
}

// useImages pulls, runs and removes a lazy image and an ordinary one.
func useImages(t *testing.T, s *site.Site) {
	t.Helper()
	// The container leaves files of another user, without read permission, in its writable layer.
	const odd = "mkdir /odd && touch /odd/file && mkdir -m 1777 /odd/sticky && touch /odd/sticky/file && " +
		"chown -R 1000:1000 /odd && chmod 0 /odd/file /odd"
	for _, name := range []string{"data", "base"} {
		ref := site.Reference(name)
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", name, err))
		}
		if _, err := s.Machine.Run(t.Context(), site.Lighter, ref, "sh", "-c", odd); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
