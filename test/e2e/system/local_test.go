//go:build e2e

package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/node/keeper"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// Once an image is completely cached and has a local device, a new container reads the local
// device. This container reads on when node and keeper are killed. A container that started earlier
// does not. Once the tree is not mounted any more, `lighter cache prune` removes the local device.
func TestContainerWithALocalDevice(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--complete", "--local-device"}}, "+python")
	const sum = "find /usr/lib/python3 /usr/bin -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
	pull(t, s, site.Lighter, "python")
	want := run(t, s, site.Lighter, "python", "sh", "-c", sum)
	startSleep := func() *site.Container {
		t.Helper()
		c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := startSleep()
	device := awaitLocal(t, s)
	after := startSleep()
	if m := sitetest.Status(t, s).Mounts; len(m) != 1 || !m[0].Local {
		t.Errorf("mounts: %+v, want one with the local device", m)
	}
	s.Machine.KillNode()
	if err := (keeper.Process{Root: s.Machine.NodeRoot()}).Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	if got, err := after.Exec(t.Context(), "sh", "-c", sum); err != nil || got != want {
		t.Errorf("digest of the files without a node: got %q, want %q (%v)", got, want, err)
	}
	if got, err := before.Exec(t.Context(), "sh", "-c", sum); err == nil && got == want {
		t.Error("without a node, the container from before the local device reads all files, want it to fail")
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s, site.Lighter, "python", "sh", "-c", sum); got != want {
		t.Errorf("digest of the files with the next node: got %q, want %q", got, want)
	}
	if m := sitetest.Status(t, s).Mounts; len(m) != 1 || !m[0].Local {
		t.Errorf("mounts of the next node: %+v, want one with the local device", m)
	}
	for _, c := range []*site.Container{before, after} {
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}

	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Machine.Lighter(t.Context(), "cache", "prune"); err != nil || !strings.Contains(out, "freed") {
		t.Errorf("lighter cache prune: output %q, error %v; want \"freed\" in the output", out, err)
	}
	if _, err := os.Stat(device); err == nil || sitetest.Status(t, s).Cache.External != 0 {
		t.Errorf("after lighter cache prune, the local device exists (%v) or counts in the cache, want neither", err)
	}
}

// awaitLocal waits until the node has a local device, and returns its path.
func awaitLocal(t *testing.T, s *site.Site) (device string) {
	t.Helper()
	await(t, "a local device", func() bool {
		found, _ := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*/local/device"))
		if len(found) == 1 {
			device = found[0]
		}
		return device != ""
	})
	return device
}

// await waits until ok returns true, for a minute at most.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("timeout: waiting for %s", what)
}
