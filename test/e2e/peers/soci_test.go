//go:build peers

package peers

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
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

// SOCI's snapshotter runs what `lighter export --format soci` makes lazily, and fetches the
// prioritized files before a container reads them. The tests of converters compare its files.
func TestSOCIRunsExportedImages(t *testing.T) {
	settings := write(t, "[background_fetch]\ndisable = true\n[prefetch]\nenable = true\n")
	s, whole := start(t, site.Peer{Snapshotter: "soci",
		Command: []string{tool(t, "soci"), "snapshotter", "--root", "{root}",
			"--address", "{socket}", "--containerd", "{containerd}", "--config", settings, "--plain-http",
			"{registry}"}})
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	exported := func(name string, flags ...string) int64 {
		args := append([]string{"export", "--format", "soci", "--plain-http", "--source-plain-http", "--to",
			"docker://" + site.Reference(name)}, append(flags, site.Reference("base"))...)
		if out, err := exec.CommandContext(t.Context(), lighter, args...).CombinedOutput(); err != nil {
			t.Fatalf("lighter export: %v: %s", err, out)
		}
		return pullAndRun(t, s, "soci", name)
	}
	bytes := exported("exported")
	// `true` does not need perl.
	more := exported("prioritized", "--prioritize", write(t, "/usr/bin/perl\n"))
	if bytes > whole/3 || more < bytes+1<<20 || more > whole/2 {
		t.Errorf("received %d bytes, and %d with a prioritized file, of %d; want a third at most, at least %d more, "+
			"and half of the image at most", bytes, more, whole, 1<<20)
	}
}

// Lighter's node starts what SOCI's converter makes, without a hub.
func TestImagesOfSOCIStartWithoutHub(t *testing.T) {
	host, _, _ := strings.Cut(site.Reference("x"), "/")
	config := write(t, "hubs = []\ndirect = [\""+host+"/*\"]\n"+site.RegistryTable+"plain_http = true\n")
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s := sitetest.Start(t, site.Options{Lighter: lighter, Hubs: []string{}, NodeArgs: []string{"--config", config}})
	if err := s.Push(t.Context(), images.Dir("base"), "base"); err != nil {
		t.Fatal(err)
	}
	ref := site.Reference("soci")
	out, err := exec.CommandContext(t.Context(), tool(t, "soci"), "convert", "--plain-http", site.Reference("base"),
		ref).CombinedOutput()
	if err != nil {
		t.Fatalf("convert the image: %v: %s", err, out)
	}
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
		t.Fatal(err)
	}
	if st := sitetest.Status(t, s); len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("images %+v, want one that is lazy", st.Images)
	}
	ran, err := s.Machine.Run(t.Context(), site.Lighter, ref, "sh", "-c", "echo hello")
	if err != nil || ran.Output != "hello\n" {
		t.Errorf("got %+v, %v", ran, err)
	}
}
