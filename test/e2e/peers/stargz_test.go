//go:build peers

package peers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// tool is a program that test/setup built, and image an image that it made.
func tool(t *testing.T, name string) string  { return work(t, "tools", name) }
func image(t *testing.T, name string) string { return work(t, "images", name) }

func work(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{dir}, names...)...)
}

// write writes a file of a test.
func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a site with the stargz snapshotter, whose registry has the image base.
func start(t *testing.T, config string) *site.Site {
	t.Helper()
	s, err := site.Start(t.Context(), site.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil { // also if something is left mounted
			t.Error(err)
		}
	})
	s.SetPeer(&site.Peer{
		Snapshotter: "stargz",
		Command: []string{tool(t, "stargz"), "snapshotter", "--root", "{root}", "--address", "{socket}", "--config", write(t, config),
			"--plain-http", "{registry}"},
		Exports: map[string]string{"enable_remote_snapshot_annotations": "true"},
	})
	if err := s.Push(t.Context(), image(t, "base"), "base"); err != nil {
		t.Fatal(err)
	}
	return s
}

// made is what the converter says of an image.
type made struct {
	Layers, First int
	Bytes         int64
}

func convert(t *testing.T, to string, args ...string) (image made) {
	t.Helper()
	args = append(append([]string{"convert", "--plain-http"}, args...), site.Reference("base"), site.Reference(to))
	cmd := exec.CommandContext(t.Context(), tool(t, "stargz"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &image)
	}
	if err != nil {
		t.Fatalf("convert %q: %v: %s", args, err, out)
	}
	return image
}

// mounted counts the layers that are mounted from the peer.
func mounted(t *testing.T) (n int) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.HasPrefix(line, "stargz ") && strings.Contains(line, " fuse") {
			n++
		}
	}
	return n
}

func TestStargzIsLazy(t *testing.T) {
	manifest, err := layout.Manifest(image(t, "base"))
	if err != nil {
		t.Fatal(err)
	}
	whole := manifest.Layers[0].Size
	s := start(t, "no_background_fetch = true\n") // it would fetch all of it, sooner or later
	store := t.TempDir()
	// Debian's /bin is a link to /usr/bin; this machine's package lists are of no use to anybody.
	trace := write(t, "lighter trace 1\nstarts 1\n0 0 4096 /usr/bin/true\n2 0 4096 /no/such/file\n2 0 4096 /usr/bin/perl\n3 4096 4096 /usr/bin/true\n")
	for _, kind := range []string{"estargz", "zstdchunked"} {
		t.Run(kind, func(t *testing.T) {
			plain := convert(t, kind, "--kind", kind, "--store", store)
			traced := convert(t, kind+"-traced", "--kind", kind, "--store", store, "--trace", trace)
			if plain.First != 0 || traced.First != 2 || plain.Layers != 1 || plain.Bytes < whole/2 || traced.Bytes < whole/2 {
				t.Fatalf("the converter made %+v, and with a trace %+v", plain, traced)
			}
			bytes := pullAndRun(t, s, kind)
			if bytes > whole/8 {
				t.Errorf("pull and true moved %d bytes of %d", bytes, whole)
			}
			// perl is prefetched, though true does not need it.
			if more := pullAndRun(t, s, kind+"-traced"); more < bytes+1<<20 || more > whole/4 {
				t.Errorf("with a trace %d bytes were moved, without %d", more, bytes)
			}
		})
	}
}

// pullAndRun wipes the machine, pulls the image, runs true in it, and returns
// what went over the link.
func pullAndRun(t *testing.T, s *site.Site, name string) int64 {
	t.Helper()
	m := s.Machine
	if err := m.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Pull(t.Context(), "stargz", site.Reference(name)); err != nil {
		t.Fatal(err)
	}
	if n := mounted(t); n != 1 {
		t.Fatalf("%d layers are mounted after the pull of one", n)
	}
	ran, err := m.Run(t.Context(), "stargz", site.Reference(name), "true")
	if err != nil {
		t.Fatal(err)
	}
	after, err := m.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: create %v, run %v, %d bytes", name, ran.Create, ran.Start, after-before)
	return after - before
}
