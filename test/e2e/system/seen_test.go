//go:build e2e

package system

import (
	"encoding/json"
	"strings"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/site"
)

// lighter runs a command against the machine's node.
func lighter(t testing.TB, s *site.Site, command string, args ...string) string {
	t.Helper()
	out, err := s.Machine.Lighter(t.Context(), command, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func details(t testing.TB, s *site.Site, word string) report.ImageDetail {
	t.Helper()
	var found []report.ImageDetail
	if err := json.Unmarshal([]byte(lighter(t, s, "status", "--json", word)), &found); err != nil || len(found) != 1 {
		t.Fatalf("details of %q: %+v, %v", word, found, err)
	}
	return found[0]
}

// The status of an image matches the reads and fetches of its container.
func TestStatusOfAnImage(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--prefetch=false"}}, "+python") // only reads fetch chunks
	pull(t, s, site.Lighter, "python")
	d := details(t, s, "python:latest")
	if !d.Lazy || d.Why == "" || d.Content.Chunks == 0 || d.Content.CachedChunks != 0 || d.Mount != nil ||
		len(d.Snapshots) != 0 {
		t.Errorf("after the pull: %+v", d)
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
		t.Fatalf("with a container: %+v", d)
	}
	v := d.Mount.Device
	if v.Faults == 0 || v.Missed == 0 || v.Failed != 0 || v.Waited.Fetched == 0 || v.Waited.Total <= 0 ||
		v.Waited.Max > v.Waited.Total {
		t.Errorf("its device: %+v", v)
	}
	st := status(t, s) // the kernel may have read ahead since
	if got := v.Received[site.HubURL]; len(v.Received) != 1 || got == 0 || got > st.Fetched.Bytes {
		t.Errorf("bytes received: %v by the image, %+v by the node", v.Received, st.Fetched)
	}
	if d.Content.CachedBytes < v.Missed || d.Content.CachedBytes >= d.Content.Bytes {
		t.Errorf("%d bytes missed, content %+v", v.Missed, d.Content)
	}
	said := lighter(t, s, "status", "python:latest")
	for _, word := range []string{site.Reference("python"), d.Chain, d.Tree.String(), "waited", "from " + site.HubURL,
		c.ID} {
		if !strings.Contains(said, word) {
			t.Errorf("the output does not contain %q:\n%s", word, said)
		}
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said, err := s.Machine.Lighter(t.Context(), "status", "nothing:1"); err == nil ||
		!strings.Contains(err.Error(), "no such image") {
		t.Errorf("status of an unknown image: %q, %v", said, err)
	}
}
