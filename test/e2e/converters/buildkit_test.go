//go:build runtimes

package converters

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// BuildKit writes eStargz. Its zstd has no table: the image is pulled as usual, and the node says
// why.
func TestBuildKit(t *testing.T) {
	s, _ := start(t)
	b, err := buildkitd.Start(t.Context(), s, "buildkit", buildkitd.Overlayfs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	}()
	dir := t.TempDir()
	dockerfile := "FROM " + original + "\nRUN echo built > /built && rm -r /usr/share/man /odd/kept\nCOPY . /context/\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	build := func(compression string) (ref string) {
		ref = site.Reference("lazy/buildkit-" + compression)
		if err := b.Build(t.Context(), dir, "--output", "type=image,push=true,oci-mediatypes=true,compression="+
			compression+",force-compression=true,name="+ref); err != nil {
			t.Fatal(err)
		}
		return ref
	}
	startsLazily(t, s, build("estargz"), 8<<20, stargzLoss)

	ref := build("zstd")
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
	if !strings.Contains(string(log), "image="+ref+" err=\"no tables of contents: layer ") {
		t.Errorf("the node's log has no reason why %s is not lazy", ref)
	}
	ran, err := s.Machine.Run(t.Context(), site.Lighter, ref, "cat", "/built")
	if err != nil || ran.Output != "built\n" {
		t.Errorf("got %q, %v", ran.Output, err)
	}
}
