//go:build runtimes

package converters

import (
	"os"
	"path/filepath"
	"testing"

	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/site"
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

	pulledAsUsual(t, s, build("zstd"), "the layer has no table of contents")
}
