//go:build e2e

package system

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

// forge makes an OCI layout whose config has the diffIDs of an image, but whose layers have other
// content. In the manifest, each layer has the given annotations.
func forge(t *testing.T, image string, annotations map[string]string) string {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(work, "images", image)
	genuine, err := layout.Manifest(from)
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
	forged := genuine
	forged.Layers = nil
	for n := range genuine.Layers {
		layer, _, err := layout.WriteLayer(to, func(l *layout.Layer) error {
			return l.File("invented", fmt.Appendln(nil, n))
		})
		if err != nil {
			t.Fatal(err)
		}
		layer.Annotations = annotations
		forged.Layers = append(forged.Layers, layer)
	}
	if err := layout.Write(to, forged, config); err != nil {
		t.Fatal(err)
	}
	return to
}

// manifestOf returns the digest of the manifest that the hub has for the image NAME:latest.
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

// An image is lazy only if the hub knows its manifest from the repository of the pull. The config
// of a forged image has the diffIDs of a genuine image, so both have the same chainIDs. The pull of
// the forged image is an ordinary pull, and fails, because its layers have other diffIDs. The test
// pushes the forged image to another repository, and to that of the genuine image. Annotations in
// the forged manifest name the genuine image, and have no effect.
func TestForgedImage(t *testing.T) {
	s := start(t, site.Options{}, "+python")
	annotations := map[string]string{
		"containerd.io/snapshot/cri.image-ref":       site.Reference("python"),
		"containerd.io/snapshot/cri.manifest-digest": manifestOf(t, s, "python"),
	}
	forged := forge(t, "python", annotations)
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"evil", "python"} { // the second push replaces the genuine image
		if err := s.Push(t.Context(), forged, tag); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(tag)); err == nil ||
			!strings.Contains(err.Error(), "wrong diff id") {
			t.Errorf("%s: pull of a forged image: %v, want an error with \"wrong diff id\"", tag, err)
		}
		if st := sitetest.Status(t, s); len(st.Mounts) != 0 {
			t.Errorf("%s: mounts after the pull of a forged image: %+v, want none", tag, st.Mounts)
		}
	}

	// The genuine manifest is pulled from a repository that the hub does not know. The image is an
	// ordinary image, because the hub cannot know whether this repository has the layers.
	if err := s.Push(t.Context(), filepath.Join(work, "images", "python"), "copy"); err != nil {
		t.Fatal(err)
	}
	if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "copy") }); moved < 30<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	why := details(t, s, "copy:latest").Why
	if !strings.Contains(why, "not from this repository") || !strings.Contains(why, "/python") ||
		!strings.Contains(why, "/copy") {
		t.Errorf("the reason in the status: %q, want \"not from this repository\", and both repositories", why)
	}
	removeImage(t, s, "copy")

	if err := s.Push(t.Context(), filepath.Join(work, "images", "python"), "python"); err != nil {
		t.Fatal(err)
	}
	if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "python") }); moved > 3<<20 {
		t.Errorf("the pull of the genuine image received %d bytes, want at most 3 MiB: no layer", moved)
	}
	removeImage(t, s, "python")

	// With trust = "chain", which an administrator must set, every image with the chain gets the
	// files of the genuine image.
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.StartNode(t.Context(), "--trust", "chain"); err != nil {
		t.Fatal(err)
	}
	reconnect(t, s)
	pull(t, s, site.Lighter, "evil")
	if st := sitetest.Status(t, s); st.Trust.Trust != "chain" || len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("status with trust = \"chain\": %+v, %+v; want this trust, and one lazy image", st.Trust, st.Images)
	}
}

// Without enable_remote_snapshot_annotations, containerd does not tell the snapshotter the image of
// a snapshot. With trust = "image" the image is then pulled as an ordinary image. Status and doctor
// name the missing setting.
func TestDoctorFindsMissingAnnotations(t *testing.T) {
	s := start(t, site.Options{Unlabelled: true, NodeArgs: []string{"--trust", "image"}}, "+base")
	if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	for _, image := range sitetest.Status(t, s).Images {
		if image.Lazy || !strings.Contains(image.Why, "enable_remote_snapshot_annotations") {
			t.Errorf("the status: %+v, want an image that is not lazy, and the missing setting as the reason", image)
		}
	}
	findings, code := examine(t, s)
	finds(t, findings, "containerd", "problem", "does not export enable_remote_snapshot_annotations")
	if code != 3 {
		t.Errorf("exit code of the doctor: got %d, want 3", code)
	}
}
