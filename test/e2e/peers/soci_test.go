//go:build peers

package peers

import (
	"encoding/json"
	"os/exec"
	"testing"

	"lighter/test/testkit/site"
)

func TestSOCIIsLazy(t *testing.T) {
	// By default the snapshotter fetches the whole image in the background.
	settings := write(t, "[background_fetch]\ndisable = true\n")
	s, whole := start(t, site.Peer{Snapshotter: "soci",
		Command: []string{tool(t, "soci"), "snapshotter", "--root", "{root}",
			"--address", "{socket}", "--containerd", "{containerd}", "--config", settings, "--plain-http",
			"{registry}"}})
	out, err := exec.CommandContext(t.Context(), tool(t, "soci"), "convert", "--plain-http", site.Reference("base"),
		site.Reference("soci")).Output()
	if err != nil || !json.Valid(out) {
		t.Fatalf("convert the image: %v, want JSON: %s", err, out)
	}
	if bytes := pullAndRun(t, s, "soci", "soci"); bytes > whole/3 {
		t.Errorf("pulling and running `true` received %d of %d bytes, want a third at most", bytes, whole)
	}
}
