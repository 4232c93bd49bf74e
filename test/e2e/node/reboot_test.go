//go:build e2e

package node

import (
	"testing"

	"lighter/test/testkit/site"
)

// After a reboot there are no mounts and no keeper. In this test the hub ends once the node is
// ready. containerd's images and snapshots can be used again: existing containers start with the
// files that they had written, and new containers run.
func TestReboot(t *testing.T) {
	s := startSite(t, "base")
	ref := site.Reference("base")
	pull(t, s, "base")
	pull(t, s, "python") // the hub does not know this image, which extends base
	greet(t, s, "base")
	greet(t, s, "python")
	const line = "test -e /file || echo kept >/file; sleep infinity"
	var old []*site.Container
	for _, ref := range []string{ref, site.Reference("python")} {
		c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sh", "-c", line)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(t.Context(), "sh", "-c",
			"until test -s /file; do sleep 0.1; done; cat /file; sync"); err != nil {
			t.Fatal(err)
		}
		old = append(old, c)
	}
	if err := s.Machine.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := nodeStatus(t, s); len(st.Images) != 2 || len(st.Mounts) != 0 || len(st.Lost) != 0 {
		t.Errorf("status after the reboot: %+v, want two images, no mount and no lost tree", st)
	}
	if err := s.Hub.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range old {
		if err := c.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out, err := c.Exec(t.Context(), "cat", "/file"); err != nil || out != "kept\n" {
			t.Errorf("/file in container %s is %q (%v), want %q", c.ID, out, err, "kept\n")
		}
	}
	greet(t, s, "base")
	greet(t, s, "python")
	for _, c := range old {
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"base", "python"} {
		if err := s.Machine.RemoveImage(t.Context(), site.Reference(name)); err != nil {
			t.Error(err)
		}
	}
	if st := nodeStatus(t, s); len(st.Images)+len(st.Mounts) != 0 {
		t.Errorf("images %+v and mounts %+v are left", st.Images, st.Mounts)
	}
}
