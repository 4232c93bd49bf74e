//go:build e2e

package system

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// forge makes an OCI layout whose config has the diffIDs of an image, but whose layers have other
// content. claim holds the annotations of the layers in its manifest.
func forge(t *testing.T, image string, claim map[string]string) string {
	t.Helper()
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(work, "images", image)
	victim, err := layout.Manifest(from)
	if err != nil {
		t.Fatal(err)
	}
	config, err := layout.Config(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "forged")
	if err := os.MkdirAll(filepath.Join(to, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	forged := victim
	forged.Layers = nil
	for n := range victim.Layers {
		layer, _, err := layout.WriteLayer(to, func(l *layout.Layer) error {
			return l.File("invented",
				fmt.Appendln(nil, n))
		})
		if err != nil {
			t.Fatal(err)
		}
		layer.Annotations = claim
		forged.Layers = append(forged.Layers, layer)
	}
	if err := layout.Write(to, forged, config); err != nil {
		t.Fatal(err)
	}
	return to
}

// manifestOf returns the digest of an image's manifest in the hub.
func manifestOf(t *testing.T, s *site.Site, name string) string {
	t.Helper()
	out, err := s.Hub.Lighter(t.Context(), "images", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var images []struct{ Name, Digest string }
	if err := json.Unmarshal([]byte(out), &images); err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		if image.Name == name+":latest" {
			return image.Digest
		}
	}
	t.Fatalf("the hub has no %s: %s", name, out)
	return ""
}

// A node uses an image of the hub only for a pull of the image's manifest from its repository. A
// forged config with the same diffIDs results in the same chains. Such an image is unpacked as an
// ordinary image, which fails: in another or the same repository, and although the annotations in
// its manifest name the genuine image.
func TestForgedImage(t *testing.T) {
	s := start(t, site.Options{}, "+python")
	claim := map[string]string{
		"containerd.io/snapshot/cri.image-ref":       site.Reference("python"),
		"containerd.io/snapshot/cri.manifest-digest": manifestOf(t, s, "python"),
	}
	forged := forge(t, "python", claim)
	copied, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"evil", "python"} { // the second replaces the image's tag
		if err := s.Push(t.Context(), forged, tag); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(tag)); err == nil ||
			!strings.Contains(err.Error(), "wrong diff id") {
			t.Errorf("%s: pull of a forged image: %v, want an error", tag, err)
		}
		if st := status(t, s); len(st.Mounts) != 0 {
			t.Errorf("%s: mounted: %+v", tag, st.Mounts)
		}
	}

	// The same manifest from a repository that the hub does not know is an ordinary image: the hub
	// cannot know whether the repository has the layers.
	if err := s.Push(t.Context(), filepath.Join(copied, "images", "python"), "copy"); err != nil {
		t.Fatal(err)
	}
	if moved := received(t, s, func() { pull(t, s, site.Lighter, "copy") }); moved < 30<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	why := details(t, s, "copy:latest").Why
	if !strings.Contains(why, "not from this repository") || !strings.Contains(why, "/python") ||
		!strings.Contains(why, "/copy") {
		t.Errorf("the reason in the status: %q", why)
	}
	removeImage(t, s, "copy")

	if err := s.Push(t.Context(), filepath.Join(copied, "images", "python"), "python"); err != nil {
		t.Fatal(err)
	}
	if moved := received(t, s, func() { pull(t, s, site.Lighter, "python") }); moved > 3<<20 {
		t.Errorf("the pull of the genuine image received %d bytes", moved)
	}
	removeImage(t, s, "python")

	// With trust in chains, all images with the same chain get the files. The operator must enable
	// it.
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.StartNode(t.Context(), "--trust", "chain"); err != nil {
		t.Fatal(err)
	}
	reconnect(t, s)
	pull(t, s, site.Lighter, "evil")
	if st := status(t, s); st.Trust.Trust != "chain" || len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("status with trust in chains: %+v, %+v", st.Trust, st.Images)
	}
}

// Without enable_remote_snapshot_annotations, containerd does not name the image of a snapshot. The
// annotations of a manifest do not replace this, and the doctor reports the setting.
func TestDoctorFindsMissingAnnotations(t *testing.T) {
	s := start(t, site.Options{Unlabelled: true, NodeArgs: []string{"--trust", "image"}}, "+base")
	if moved := received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	for _, image := range status(t, s).Images {
		if image.Lazy || !strings.Contains(image.Why, "enable_remote_snapshot_annotations") {
			t.Errorf("the status: %+v", image)
		}
	}
	findings, code := examine(t, s)
	finds(t, findings, "containerd", "problem", "does not export enable_remote_snapshot_annotations")
	if code != 3 {
		t.Errorf("exit %d", code)
	}
}
