//go:build e2e

package system

import (
	"encoding/json"
	"strings"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// lighter runs a lighter command against the machine's node, and returns its output.
func lighter(t testing.TB, s *site.Site, command string, args ...string) string {
	t.Helper()
	out, err := s.Machine.Lighter(t.Context(), command, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// details returns the node's status of the only image that word selects.
func details(t testing.TB, s *site.Site, word string) report.ImageDetail {
	t.Helper()
	var found []report.ImageDetail
	if err := json.Unmarshal([]byte(lighter(t, s, "status", "--json", word)), &found); err != nil || len(found) != 1 {
		t.Fatalf("status of the images that %q selects: %+v (%v), want one image", word, found, err)
	}
	return found[0]
}

// The status of an image shows what its container has read, and what the node has fetched for it.
func TestStatusOfAnImage(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--prefetch=false"}}, "+python") // only reads fetch chunks
	pull(t, s, site.Lighter, "python")
	d := details(t, s, "python:latest")
	if !d.Lazy || d.Why == "" || d.Content.Chunks == 0 || d.Content.CachedChunks != 0 || d.Mount != nil ||
		len(d.Snapshots) != 0 {
		t.Errorf("status after the pull: %+v, want a lazy image without cached chunks, mount and snapshots", d)
	}
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "python3", "-c", "print()"); err != nil {
		t.Fatal(err)
	}
	d = details(t, s, "python:latest")
	if d.Mount == nil || len(d.Snapshots) != 1 || !strings.Contains(d.Snapshots[0], c.ID) {
		t.Fatalf("status while a container runs: %+v, want a mount, and the snapshot of container %s", d, c.ID)
	}
	device := d.Mount.Device
	if device.Faults == 0 || device.Missed == 0 || device.Failed != 0 || device.Waited.Fetched == 0 ||
		device.Waited.Total <= 0 || device.Waited.Max > device.Waited.Total {
		t.Errorf("the device: %+v, want reads that missed and waited, and no failed reads", device)
	}
	// The node may have fetched more for the kernel's read-ahead since details was called.
	st := sitetest.Status(t, s)
	if got := device.Received[site.HubURL]; len(device.Received) != 1 || got == 0 || got > st.Fetched.Bytes {
		t.Errorf("bytes received for the image: %v, want some from the hub only, at most as many as the node: %+v",
			device.Received, st.Fetched)
	}
	if d.Content.CachedBytes < device.Missed || d.Content.CachedBytes >= d.Content.Bytes {
		t.Errorf("the content: %+v, want at least %d cached bytes, which reads have missed, and not all bytes cached",
			d.Content, device.Missed)
	}
	output := lighter(t, s, "status", "python:latest")
	for _, word := range []string{site.Reference("python"), d.Chain, d.Tree.String(), "waited", "from " + site.HubURL,
		c.ID} {
		if !strings.Contains(output, word) {
			t.Errorf("the output of lighter status does not contain %q:\n%s", word, output)
		}
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if output, err := s.Machine.Lighter(t.Context(), "status", "nothing:1"); err == nil ||
		!strings.Contains(err.Error(), "no such image") {
		t.Errorf("status of an unknown image: output %q, error %v; want an error with \"no such image\"", output, err)
	}
}
