//go:build e2e

package hubs

import (
	"os/exec"
	"strings"
	"testing"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// copyTo pushes an image with skopeo.
func copyTo(t *testing.T, layout, ref string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "skopeo", "copy", "--quiet", "--insecure-policy",
		"--preserve-digests", "--dest-tls-verify=false", "oci:"+layout+":latest", "docker://"+ref).CombinedOutput()
	if err != nil {
		t.Fatalf("skopeo copy: %v: %s", err, out)
	}
}

// An image that skopeo pushes through the hub is in its registry. When the push has ended, the hub
// knows the image, and soon it is lazy. Podman pushes the next one, and containerd another one by
// the registry's own name.
func TestPushThrough(t *testing.T) {
	stop, err := site.StartPushName()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	s := start(t, site.Options{Isolated: true}, site.PushTable)
	layout := image(t, 0, 40)
	copyTo(t, layout, s.Hub.PushReference("pushed"))
	ref := site.Reference("pushed")
	if state, err := s.Hub.State(t.Context(), ref); state == "" {
		t.Errorf("after the push, the hub has no image %s (%v)", ref, err)
	}
	eventually.Holds(t, ref+" to be ready", func() bool { return isReady(t, s.Hub, ref) })
	reads(t, run(t, s, ref), 0, 40)
	copyTo(t, image(t, 40, 60), s.Hub.PushReference("next"))
	reads(t, run(t, s, site.Reference("next")), 40, 60) // it is pulled at once, and lazy

	podman := newPodman(t)
	id := podman(nil, "pull", "--quiet", "--tls-verify=false", ref)
	podman(nil, "push", "--quiet", "--tls-verify=false", id, s.Hub.PushReference("by-podman"))

	host, _, _ := strings.Cut(s.Hub.PushReference("x"), "/")
	byContainerd := site.Reference("by-containerd")
	for _, args := range [][]string{{"pull", "--plain-http", "--snapshotter", site.Overlayfs, ref},
		{"push", "--hosts-dir", hostsDir(t, "http://"+host, "push"), byContainerd, ref}} {
		if _, err := s.Machine.CtrIn(t.Context(), "pusher", append([]string{"images"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []string{site.Reference("by-podman"), byContainerd} {
		eventually.Holds(t, ref+" to be ready", func() bool { return isReady(t, s.Hub, ref) })
	}
}
