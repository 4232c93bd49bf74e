//go:build peers

package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// tool returns the path of a program that test/setup has built.
func tool(t *testing.T, name string) string { return work(t, "tools", name) }

// work returns a path below LIGHTER_WORK.
func work(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{dir}, names...)...)
}

// write writes a text to a temporary file.
func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a site with the image base in its registry. The machine runs the peer after its next
// Wipe. start returns the compressed size of the image's only layer, in bytes.
func start(t *testing.T, peer site.Peer) (*site.Site, int64) {
	t.Helper()
	s := sitetest.Start(t, site.Options{})
	peer.Exports = map[string]string{"enable_remote_snapshot_annotations": "true"}
	s.SetPeer(&peer)
	if err := s.Push(t.Context(), images.Dir("base"), "base"); err != nil {
		t.Fatal(err)
	}
	return s, images.Size(t, "base")
}

// mounted counts the layers that a peer has mounted with FUSE.
func mounted(t *testing.T, s *site.Site) (n int) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // source, directory, type
		if strings.HasPrefix(fields[1], s.Dir+"/") && strings.HasPrefix(fields[2], "fuse") {
			n++
		}
	}
	return n
}

// pullAndRun wipes the machine, pulls an image and runs `true` in it. It returns the number of
// bytes that the machine received over the link for that.
func pullAndRun(t *testing.T, s *site.Site, snapshotter, name string) int64 {
	t.Helper()
	m := s.Machine
	if err := m.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Pull(t.Context(), snapshotter, site.Reference(name)); err != nil {
		t.Fatal(err)
	}
	ran, err := m.Run(t.Context(), snapshotter, site.Reference(name), "true")
	if err != nil {
		t.Fatal(err)
	}
	after, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if n := mounted(t, s); n != 1 {
		t.Errorf("the peer has mounted %d layers, want one", n)
	}
	t.Logf("%s: create %v, run %v, %d bytes", name, ran.Create, ran.Start, after-before)
	return after - before
}
