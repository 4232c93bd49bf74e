//go:build e2e

package versions

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lighter/test/testkit/history"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

// firstKept is the commit of the earlier version. Today's version must read what this commit and
// all later ones have written.
const firstKept = "50460199f05f"

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// Hub and node have different versions. While a container runs, today's version replaces both.
func TestVersionsWorkTogether(t *testing.T) {
	earlier := history.Build(t, firstKept)
	if earlier == "" {
		t.Skipf("history without commit %s", firstKept)
	}
	today, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("hub of an earlier version", func(t *testing.T) { update(t, today, earlier, today) })
	t.Run("node of an earlier version", func(t *testing.T) { update(t, today, today, earlier) })
}

// update starts the given builds of a hub and a node, and replaces both by today's build.
// Containers must read the right files before and after.
func update(t *testing.T, today, hub, node string) {
	s := start(t, today, hub, node)
	if want == "" {
		want = read(t, s, site.Overlayfs)
	}
	if got := read(t, s, site.Lighter); got != want {
		t.Errorf("before a replacement: digest of the files: got %s, want %s", got, want)
	}
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, image, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	s.Machine.KillNode()
	s.SetNode(today)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Machine.StartNode(t.Context()), s.Machine.Reconnect(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Exec(t.Context(), reading...); err != nil || got != want {
		t.Errorf("after the node was replaced: digest of the files: got %s, want %s (%v)", got, want, err)
	}

	s.Hub.Kill()
	s.SetHub(today)
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Machine.Command(t.Context(), today, "cache", "prune", "--root", s.Machine.NodeRoot()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, s, site.Lighter); got != want {
		t.Errorf("after the hub was replaced: digest of the files: got %s, want %s", got, want)
	}
}

var (
	want  string // the digest that reading prints on overlayfs; set by the first update
	image = site.Reference("base")
	// reading is a command that prints a digest of many of the image's files.
	reading = []string{"sh", "-c", "find /usr/bin /etc -xdev -type f -print0 | sort -z | xargs -0 cat | sha256sum"}
)

// start starts a site with the given builds of hub and node, and adds the image base to the hub.
func start(t *testing.T, today, hub, node string) *site.Site {
	t.Helper()
	s := sitetest.Start(t, site.Options{Lighter: today, Hub: hub, Node: node})
	work, err := workdir.Path()
	if err == nil {
		err = s.Push(t.Context(), filepath.Join(work, "images", "base"), "base")
	}
	if err == nil {
		err = s.Hub.Add(t.Context(), "base")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read pulls the image, and returns the output of reading in a container. With the snapshotter
// lighter, the pull must be lazy.
func read(t *testing.T, s *site.Site, snapshotter string) string {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), snapshotter, image); err != nil {
		t.Fatal(err)
	}
	ran, err := s.Machine.Run(t.Context(), snapshotter, image, reading...)
	if err != nil {
		t.Fatal(err)
	}
	if snapshotter == site.Lighter {
		if trees, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*/map")); len(trees) != 1 {
			t.Errorf("extent maps on the node's disk: %q (%v), want one: the image is not lazy", trees, err)
		}
	}
	return ran.Output
}
