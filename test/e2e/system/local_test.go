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
)

// Once an image is completely cached, a new container reads a local device. It continues when node
// and keeper are killed; an older container does not. Once the tree is not mounted, `lighter cache
// prune` removes the local device.
func TestContainerWithALocalDevice(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--complete", "--local-device"}}, "+python")
	const sum = "find /usr/lib/python3 /usr/bin -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
	pull(t, s, site.Lighter, "python")
	want := run(t, s, site.Lighter, "python", "sh", "-c", sum)
	begin := func() *site.Container {
		t.Helper()
		c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := begin()
	device := awaitLocal(t, s)
	after := begin()
	if m := status(t, s).Mounts; len(m) != 1 || !m[0].Local {
		t.Errorf("mounted: %+v", m)
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
		t.Error("the older container also reads without a node")
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
	if m := status(t, s).Mounts; len(m) != 1 || !m[0].Local {
		t.Errorf("mounted by the next node: %+v", m)
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
		t.Errorf("prune printed %q, %v", out, err)
	}
	if _, err := os.Stat(device); err == nil || status(t, s).Cache.External != 0 {
		t.Errorf("an unused local device was not removed: %v", err)
	}
}

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
