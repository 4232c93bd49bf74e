//go:build e2e || runtimes || peers

package converters

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/images"
	"lighter/test/testkit/referrers"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	tars "lighter/test/testkit/tarball"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// original is the image that the programs convert: the image base with two layers of odd entries.
var original = site.Reference("original")

// start starts a site with the original image in its registry, and returns the image's OCI layout,
// too. The node has no hub. It reads the images below lazy/ of the site's registry, and of others.
func start(t *testing.T, others ...referrers.Registry) (s *site.Site, layout string) {
	t.Helper()
	host, _, _ := strings.Cut(original, "/")
	config := filepath.Join(t.TempDir(), "node.toml")
	direct := fmt.Sprintf("%q", host+"/lazy/*")
	for _, other := range others {
		direct += fmt.Sprintf(", %q", other.Host+"/lazy/*")
	}
	text := "hubs = []\ndirect = [" + direct + "]\n" + site.RegistryTable + "plain_http = true\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s = sitetest.Start(t, site.Options{Lighter: lighter, Hubs: []string{}, NodeArgs: []string{"--config", config}})
	layout = filepath.Join(s.Dir, "original") // Podman takes no path with capital letters, as t.TempDir has
	if err := images.Write(layout, "latest", images.Base(t, tars.Kinds()...)); err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), layout, "original"); err != nil {
		t.Fatal(err)
	}
	return s, layout
}

// do runs a command, and returns what it printed.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// tool returns the path of a program that test/setup has built.
func tool(t *testing.T, name string) string {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(work, site.Ours, name)
}

// The tables of stargz' converter have times in seconds, and not the files of the format.
func stargzLoss(path string, e *fswalk.Entry) (absent bool) {
	at := time.Unix(e.Sec, e.Nsec).Round(time.Second)
	e.Sec, e.Nsec = at.Unix(), 0
	return sitetest.StargzFiles(path, e)
}

// startsLazily pulls and runs an image with Lighter. The pull may receive limit bytes.
func startsLazily(t *testing.T, s *site.Site, ref string, limit int64, lost sitetest.Loss) {
	t.Helper()
	compared(t, s, site.Lighter, ref, limit, lost)
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// pulledAsUsual pulls an image, which is not lazy. The node's log says why.
func pulledAsUsual(t *testing.T, s *site.Site, ref, reason string) {
	t.Helper()
	moved := images.Received(t, s, func() {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
			t.Fatal(err)
		}
	})
	if st := sitetest.Status(t, s); moved < images.Size(t, "base")/2 || len(st.Images) != 1 || st.Images[0].Lazy {
		t.Errorf("%s: the pull received %d bytes, want the whole image; images %+v", ref, moved, st.Images)
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil {
		t.Fatal(err)
	}
	_, said, found := strings.Cut(string(log), "image="+ref+" err=")
	if said, _, _ = strings.Cut(said, "\n"); !found || !strings.Contains(said, reason) {
		t.Errorf("the node's log says %s: want that %s is not lazy because of %q", said, ref, reason)
	}
	ran, err := s.Machine.Run(t.Context(), site.Lighter, ref, "cat", "/odd/xattrs")
	if err != nil || ran.Output != "text" {
		t.Errorf("%s: got %q, %v", ref, ran.Output, err)
	}
}

// compared pulls and runs an image, and compares all its files with those that overlayfs unpacks,
// except for what its format does not have. The pull may receive limit bytes.
func compared(t *testing.T, s *site.Site, snapshotter, ref string, limit int64, lost sitetest.Loss) {
	t.Helper()
	moved := images.Received(t, s, func() {
		if _, err := s.Machine.Pull(t.Context(), snapshotter, ref); err != nil {
			t.Fatal(err)
		}
	})
	if st := sitetest.Status(t, s); snapshotter == site.Lighter && (len(st.Images) != 1 || !st.Images[0].Lazy) {
		t.Errorf("%s: images %+v, want one that is lazy", ref, st.Images)
	}
	if moved > limit {
		t.Errorf("%s: the pull received %d bytes, want up to %d", ref, moved, limit)
	}
	t.Logf("%s: the pull received %d bytes", ref, moved)
	sitetest.Unpack(t, s, ref).Compare(t, s, snapshotter, ref, lost)
}
