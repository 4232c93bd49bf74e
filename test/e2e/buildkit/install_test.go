//go:build runtimes

package buildkit

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"lighter/install"
	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/site"
)

// lighterInstall runs `lighter install` or `lighter uninstall` for a running buildkitd, whose
// configuration it finds by itself.
func (b builder) lighterInstall(t *testing.T, command string) (r install.Report) {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.Site.Machine.Command(t.Context(), lighter, command, "buildkit", "--json", "--buildkit", b.Socket(),
		"--root", b.Site.Machine.NodeRoot())
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// workers returns what buildctl prints about the workers.
func (b builder) workers(t *testing.T) string {
	t.Helper()
	out, err := b.Ctl(t.Context(), "debug", "workers", "--verbose")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The command makes a buildkitd build on lazy images. Its removal restores the configuration byte
// for byte, and buildkitd has its previous snapshotter, with that one's cache.
func TestInstallBuildKit(t *testing.T) {
	shared.prune(t)
	if err := shared.Stop(); err != nil { // two buildkitds cannot use a node
		t.Fatal(err)
	}
	defer func() {
		if err := shared.StartAgain(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	b, err := newBuilder(t.Context(), shared.Site, "installed", "  # as it was\n"+buildkitd.Overlayfs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	}()
	b.output(t, "FROM scratch\nCOPY file /out\n")
	config := b.Config()
	before, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	report := b.lighterInstall(t, "install")
	if len(report.Files) != 1 || report.Files[0].Path != config || !strings.Contains(report.Found[0], "overlayfs") {
		t.Errorf("report of the installation: %+v, want one file, and the snapshotter that was found", report)
	}
	// The kernel tells the start of a process to 10 ms. A process that starts sooner after the
	// change of its configuration counts as started before.
	time.Sleep(30 * time.Millisecond)
	b.restart(t)
	if out := b.workers(t); !strings.Contains(out, "stargz") {
		t.Errorf("workers after the installation: %s, want the snapshotter stargz", out)
	}
	if out := b.output(t, python+" AS run\nRUN python3 /app/hello.py > /out"+scratch); out != "hello\n" {
		t.Errorf("the build step printed %q, want hello", out)
	}
	b.hasNoLayer(t, "python")
	if report := b.lighterInstall(t, "install"); len(report.Files)+len(report.Next) != 0 {
		t.Errorf("report of a second installation: %+v, want that nothing is to be done", report)
	}
	b.prune(t)
	b.lighterInstall(t, "uninstall")
	after, err := os.ReadFile(config)
	if err != nil || string(after) != string(before) {
		t.Errorf("the configuration after the removal: %q (%v), want %q", after, err, before)
	}
	b.restart(t)
	if out := b.workers(t); strings.Contains(out, "stargz") || !strings.Contains(out, "overlayfs") {
		t.Errorf("workers after the removal: %s, want the snapshotter overlayfs", out)
	}
}
