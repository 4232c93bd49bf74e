//go:build e2e

package node

import (
	"slices"
	"strings"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// startSite starts a site. Its registry has the images base and python. Its hub has only the known
// images.
func startSite(t *testing.T, known ...string) *site.Site {
	t.Helper()
	return startSiteWith(t, site.Options{}, known...)
}

func startSiteWith(t *testing.T, options site.Options, known ...string) *site.Site {
	t.Helper()
	options.Lighter, options.Ingested = lighter, known
	s := sitetest.Start(t, options)
	for _, name := range []string{"base", "python"} {
		if slices.Contains(known, name) {
			continue
		}
		if err := s.Push(t.Context(), images.Dir(name), name); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func pull(t *testing.T, s *site.Site, name string) {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(name)); err != nil {
		t.Fatal(err)
	}
}

// restart kills the node, starts it again, and waits until containerd has reconnected.
func restart(t *testing.T, s *site.Site) {
	t.Helper()
	if err := s.Machine.RestartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// greet runs echo in a container of the named image, and checks its output.
func greet(t *testing.T, s *site.Site, name string) {
	t.Helper()
	ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference(name), "echo", "hello")
	if err != nil || ran.Output != "hello\n" {
		t.Errorf("echo in %s printed %q (%v), want %q", name, ran.Output, err, "hello\n")
	}
}

// A node is killed while a container runs. With the next node, new containers of this image and of
// another one run. When all are removed, no image and no mount is left.
func TestNodeRestartsUnderARunningContainer(t *testing.T) {
	s := startSite(t, "base", "python")
	pull(t, s, "base")
	old, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	greet(t, s, "base")
	pull(t, s, "python")
	greet(t, s, "python")
	restart(t, s)
	greet(t, s, "base")
	if err := old.Remove(t.Context()); err != nil {
		t.Error(err)
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

func nodeStatus(t *testing.T, s *site.Site) (st report.Status) {
	t.Helper()
	if err := s.Machine.NodeStatus(t.Context(), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// The status has one entry for each image: its name, whether it is lazy, and why. The next node
// shows the same entries.
func TestStatusOfImages(t *testing.T) {
	s := startSite(t, "base")
	pull(t, s, "base")
	pull(t, s, "python") // the hub does not know this image, which extends base
	check := func() []report.ImageStatus {
		t.Helper()
		got := map[string]report.ImageStatus{}
		images := nodeStatus(t, s).Images
		for _, image := range images {
			got[image.Image] = image
		}
		base, python := got[site.Reference("base")], got[site.Reference("python")]
		if len(images) != 2 || !base.Lazy || base.Tree.IsZero() || base.Why == "" {
			t.Errorf("images: %+v, want two, base lazy with a tree", images)
		}
		if python.Lazy || !python.Tree.IsZero() || !strings.Contains(python.Why,
			"the hub knows no image with manifest") || python.Chain == "" {
			t.Errorf("python: %+v, want an image that is not lazy, because the hub does not know it", python)
		}
		return images
	}
	before := check()
	restart(t, s)
	if after := check(); !slices.Equal(after, before) {
		t.Errorf("images after the restart: %+v, want %+v", after, before)
	}
	out, err := s.Machine.Lighter(t.Context(), "status")
	if err != nil || !strings.Contains(out, site.Reference("python")) || !strings.Contains(out, "not lazy") {
		t.Errorf("the status does not show that python is not lazy (%v):\n%s", err, out)
	}
}
