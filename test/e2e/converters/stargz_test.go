//go:build peers

package converters

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// stargz' converter writes eStargz, and its own zstd:chunked.
func TestStargz(t *testing.T) {
	s, _ := start(t)
	for _, kind := range []string{"estargz", "zstdchunked"} {
		ref := site.Reference("lazy/" + kind)
		do(t, tool(t, "stargz"), "convert", "--kind", kind, "--plain-http", original, ref)
		startsLazily(t, s, ref, 8<<20, stargzLoss)
	}
}

// stargz' snapshotter runs what `lighter export` makes.
func TestStargzRunsExports(t *testing.T) {
	s, _ := start(t)
	dir := t.TempDir()
	settings, first := filepath.Join(dir, "settings"), filepath.Join(dir, "first")
	prioritized := "/usr/bin/sleep\n/usr/lib/x86_64-linux-gnu/libc.so.6\n/odd/large\n"
	if err := errors.Join(os.WriteFile(settings, []byte("no_background_fetch = true\n"), 0o600),
		os.WriteFile(first, []byte(prioritized), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.SetPeer(&site.Peer{Snapshotter: "stargz", Command: []string{tool(t, "stargz"), "snapshotter", "--root", "{root}",
		"--address", "{socket}", "--config", settings, "--plain-http", "{registry}"},
		Exports: map[string]string{"enable_remote_snapshot_annotations": "true"}})
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"estargz", "zstdchunked"} {
		if err := s.Machine.Wipe(t.Context()); err != nil {
			t.Fatal(err)
		}
		ref := site.Reference(format)
		do(t, lighter, "export", "--format", format, "--to", "docker://"+ref, "--plain-http", "--source-plain-http",
			"--prioritize", first, original)
		compared(t, s, "stargz", ref, 20<<20, snapshotterLoss)
	}
}

// Where a layer has no entry for a directory, the snapshotters of stargz and SOCI make one of root.
// containerd makes it as it is in the layer below, or as its parent directory wants it.
func snapshotterLoss(path string, e *fswalk.Entry) (absent bool) {
	if path == "odd" || path == "odd/deep" {
		e.Mode, e.UID, e.GID = unix.S_IFDIR|0o755, 0, 0
	}
	return sitetest.StargzFiles(path, e)
}
