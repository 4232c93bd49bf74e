//go:build peers && nydus

package peers

import (
	"os/exec"
	"testing"

	"lighter/test/testkit/site"
)

func TestNydusIsLazy(t *testing.T) {
	// Without --no-prefetch, the snapshotter prefetches the whole image.
	s, whole := start(t, site.Peer{Snapshotter: "nydus",
		Command: []string{tool(t, "nydus"), "snapshotter", "--root", "{root}",
			"--address", "{socket}", "--no-prefetch"}})
	if out, err := exec.CommandContext(t.Context(), tool(t, "nydus"), "convert", "--plain-http", site.Reference("base"),
		site.Reference("nydus")).CombinedOutput(); err != nil {
		t.Fatalf("convert the image: %v: %s", err, out)
	}
	if bytes := pullAndRun(t, s, "nydus", "nydus"); bytes > whole/4 {
		t.Errorf("pulling and running `true` received %d of %d bytes, want a quarter at most", bytes, whole)
	}
}
