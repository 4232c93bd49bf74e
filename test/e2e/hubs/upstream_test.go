//go:build e2e

package hubs

import (
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/site"
)

// hubReference is the reference of an image in the hub's own registry.
func hubReference(name string) string {
	return strings.TrimPrefix(site.HubURL, "http://") + "/" + name + ":latest"
}

// The hub's registry does not store the layers of an image that was added from another registry.
// containerd without the snapshotter pulls these layers through the hub, and `lighter verify` reads
// them. When the other registry is away, both fail with the reason, and lazy containers read on.
func TestLayersOfAnotherRegistry(t *testing.T) {
	s := start(t, site.Options{Isolated: true}, "")
	add(t, s, image(t, 0, 4), "up")
	if size, err := s.Hub.Stored(filepath.Join("registry", "docker", "registry", "v2", "blobs")); err != nil ||
		size == 0 || size > 1<<20 {
		t.Errorf("the hub's registry stores %d bytes (%v), want only manifest and config, at most 1 MiB", size, err)
	}
	c := run(t, s, site.Reference("up"))
	reads(t, c, 0, 1)
	plainPull := func(namespace string) error {
		_, err := s.Machine.CtrIn(t.Context(), namespace, "images", "pull", "--plain-http", "--snapshotter",
			site.Overlayfs, hubReference("up"))
		return err
	}
	if err := plainPull("plain"); err != nil { // containerd verifies each layer
		t.Fatal(err)
	}
	hubCommand(t, s.Hub, "verify", "up:latest")

	if err := s.StopRegistry(); err != nil {
		t.Fatal(err)
	}
	s.Hub.Kill() // the running hub keeps layers that it has read for a minute
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	const remedy = "try again when that registry answers"
	if err := plainPull("later"); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("a pull while the other registry is away: %v, want an error with %q", err, remedy)
	}
	if out, err := s.Hub.Lighter(t.Context(), "verify", "up:latest"); err == nil ||
		!strings.Contains(out+err.Error(), remedy) {
		t.Errorf("verify while the other registry is away: %s (%v), want an error with %q", out, err, remedy)
	}
	forget(t, s)
	reads(t, c, 0, 4)
}
