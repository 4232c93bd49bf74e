//go:build peers

package converters

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"lighter/test/testkit/images"
	"lighter/test/testkit/referrers"
	"lighter/test/testkit/site"
	tars "lighter/test/testkit/tarball"
)

// SOCI's tool makes an image with an index of version 2, and pushes one of version 1 beside an
// unchanged image. That is found by the fallback tag at distribution, and by the referrers API at a
// registry that has it. With a zTOC for all layers, and without one for those of less than 10 MiB.
func TestSOCI(t *testing.T) {
	other := referrers.Start(t)
	s, layout := start(t, other)
	image, err := images.Open(layout)
	if err != nil {
		t.Fatal(err)
	}
	// As SOCI does not change layers, they have what the other programs refuse, too.
	image = images.OnTop(t, image, tars.File("odd/twice", "first"), tars.File("odd/twice", "second"),
		tars.File("odd/\xff", "text"))
	layout = write(t, image)
	for _, smallest := range []string{"0", "10485760"} {
		first, second := "lazy/soci-v1-"+smallest, "lazy/soci-v2-"+smallest
		if err := s.Push(t.Context(), layout, first); err != nil {
			t.Fatal(err)
		}
		soci := func(command string, args ...string) {
			do(t, tool(t, "soci"), append([]string{command, "--min-layer-size", smallest, "--plain-http"}, args...)...)
		}
		soci("convert", site.Reference(first), site.Reference(second))
		startsLazily(t, s, site.Reference(second), 24<<20, nil)
		for _, ref := range []string{site.Reference(first), other.Push(t, image, first)} {
			soci("create", ref)
			startsLazily(t, s, ref, 24<<20, nil)
		}
	}
}

// SOCI's snapshotter runs what `lighter export` makes. Each layer is large enough for a zTOC.
func TestSOCIRunsExports(t *testing.T) {
	s, _ := start(t)
	var layers [][]tars.Item
	for _, items := range tars.Kinds() {
		layers = append(layers, append(items, tars.File("odd/more", tars.Noise(11<<20))))
	}
	if err := s.Push(t.Context(), write(t, images.Base(t, layers...)), "large"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	settings, first := filepath.Join(dir, "settings"), filepath.Join(dir, "first")
	if err := errors.Join(
		os.WriteFile(settings, []byte("[background_fetch]\ndisable = true\n[prefetch]\nenable = true\n"), 0o600),
		os.WriteFile(first, []byte("/usr/bin/sleep\n/odd/large\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.SetPeer(&site.Peer{Snapshotter: "soci", Command: []string{tool(t, "soci"), "snapshotter", "--root", "{root}",
		"--address", "{socket}", "--containerd", "{containerd}", "--config", settings, "--plain-http", "{registry}"},
		Exports: map[string]string{"enable_remote_snapshot_annotations": "true"}})
	if err := s.Machine.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	ref := site.Reference("soci")
	do(t, lighter, "export", "--format", "soci", "--to", "docker://"+ref, "--plain-http", "--source-plain-http",
		"--prioritize", first, site.Reference("large"))
	compared(t, s, "soci", ref, 20<<20, snapshotterLoss)
}

// write writes an image to a new OCI layout.
func write(t *testing.T, image v1.Image) (layout string) {
	t.Helper()
	layout = filepath.Join(t.TempDir(), "layout")
	if err := images.Write(layout, "latest", image); err != nil {
		t.Fatal(err)
	}
	return layout
}

// SOCI's zTOC of a sparse file names bytes that the layer does not have.
func TestSOCISparse(t *testing.T) {
	s, layout := start(t)
	image, err := images.Open(layout)
	if err != nil {
		t.Fatal(err)
	}
	sparse := tars.File("odd/sparse", "data", tars.PAX("GNU.sparse.size", "10000"),
		tars.PAX("GNU.sparse.numblocks", "1"), tars.PAX("GNU.sparse.map", "5000,4"))
	sparse.Sparse = true
	if err := s.Push(t.Context(), write(t, images.OnTop(t, image, sparse)), "lazy/sparse"); err != nil {
		t.Fatal(err)
	}
	ref := site.Reference("lazy/sparse")
	do(t, tool(t, "soci"), "create", "--min-layer-size", "0", "--plain-http", ref)
	pulledAsUsual(t, s, ref, "odd/sparse")
}
