//go:build e2e

package bounds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/site"
)

// Shell commands: programs prints a digest of the files in an image's directories of programs.
// number prints the file /number, which only a derived image has.
const (
	programs = "find /usr/bin /usr/sbin -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum"
	number   = "cat /number 2>/dev/null || :"
)

// Images with shared layers are pulled, run and removed repeatedly. No content, mount or file is
// left, and the node's usage does not grow.
func TestImagesComeAndGo(t *testing.T) {
	s := start(t, site.Options{})
	want := pushShared(t, s)
	clean := look(t, s)
	clean.wantEmpty(t)
	t.Run("garbage collection", func(t *testing.T) {
		removeInTurn(t, s, want)
		after := look(t, s)
		after.wantEmpty(t)
		after.wantFiles(t, clean)
	})
	t.Run("rounds", func(t *testing.T) {
		early, late := rounds(t, s, want)
		late.wantEmpty(t)
		late.wantFiles(t, clean)
		late.wantUsage(t, early)
	})
}

// pushShared pushes images with shared layers: base; python, which extends base; and two images
// that extend python. It returns, by name, what programs and number print in each image. The output
// of programs is determined with overlayfs.
func pushShared(t *testing.T, s *site.Site) map[string]string {
	t.Helper()
	push(t, s, "base", "python")
	want := map[string]string{}
	for _, name := range []string{"base", "python"} {
		if _, err := s.Machine.Pull(t.Context(), site.Overlayfs, site.Reference(name)); err != nil {
			t.Fatal(err)
		}
		ran, err := s.Machine.Run(t.Context(), site.Overlayfs, site.Reference(name), "sh", "-c", programs)
		if err != nil || !strings.HasSuffix(ran.Output, "  -\n") {
			t.Fatalf("run %s with overlayfs: got %q (%v), want a digest", name, ran.Output, err)
		}
		want[name] = strings.TrimSpace(ran.Output)
		if err := s.Machine.RemoveImage(t.Context(), site.Reference(name)); err != nil {
			t.Fatal(err)
		}
	}
	for i, dir := range derive(t, s, "python", 2) {
		name := filepath.Base(dir)
		if err := errors.Join(s.Push(t.Context(), dir, name), s.Hub.Add(t.Context(), name)); err != nil {
			t.Fatal(err)
		}
		want[name] = fmt.Sprint(want["python"], i)
	}
	return want
}

// runChecked runs a container. It returns an error unless programs and number print want.
func runChecked(ctx context.Context, s *site.Site, name, want string) error {
	const command = `found=$(` + programs + `)$(` + number +
		`) && [ "$found" = "$0" ] || { echo "read $found, want $0" >&2; exit 1; }`
	_, err := s.Machine.Run(ctx, site.Lighter, site.Reference(name), "sh", "-c", command, want)
	return err
}

// removeInTurn pulls and runs all images, and removes them one after the other. It checks that
// containerd's garbage collection frees the resources of a removed image, but none that another
// image uses.
func removeInTurn(t *testing.T, s *site.Site, want map[string]string) {
	for name, digest := range want {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(name)); err != nil {
			t.Fatal(err)
		}
		if err := runChecked(t.Context(), s, name, digest); err != nil {
			t.Fatal(err)
		}
	}
	remaining := maps.Clone(want)
	for _, step := range []struct {
		removed string
		trees   int // python's tree stays as long as one of the three images that have its chain
	}{{"", 4}, {"python-0", 3}, {"python", 3}, {"python-1", 1}, {"base", 0}} {
		if step.removed != "" {
			if err := s.Machine.RemoveImage(t.Context(), site.Reference(step.removed)); err != nil {
				t.Fatal(err)
			}
			delete(remaining, step.removed)
		}
		trees, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*"))
		if err != nil || len(trees) != step.trees {
			t.Errorf("got %d trees after %q was removed, want %d: %v", len(trees), step.removed, step.trees, err)
		}
		for name, digest := range remaining {
			if err := runChecked(t.Context(), s, name, digest); err != nil {
				t.Errorf("run %s after %q was removed: %v", name, step.removed, err)
			}
		}
	}
}

// rounds pulls, runs and removes images repeatedly, first with a node that is killed from time to
// time, then with one that keeps running. It returns the state early and late in the life of the
// node that keeps running.
func rounds(t *testing.T, s *site.Site, want map[string]string) (early, late state) {
	pulls := size(16, 500)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(1, seed))
	done := 0
	for ; done < pulls/2; done += len(want) {
		if done == 0 || r.IntN(6) == 0 {
			restart(t, s)
		}
		round(t, s, want)
	}
	restart(t, s)
	for ; done < pulls/2+12; done += len(want) {
		round(t, s, want)
	}
	early = look(t, s)
	for ; done < pulls+8; done += len(want) {
		round(t, s, want)
	}
	late = look(t, s)
	t.Logf("%d pulls (seed %d); usage of the last node: early %+v, late %+v", done, seed, early.usage, late.usage)
	return early, late
}

// round pulls, runs and removes all images concurrently.
func round(t *testing.T, s *site.Site, want map[string]string) {
	t.Helper()
	var group errgroup.Group
	for name, digest := range want {
		group.Go(func() error {
			ref := site.Reference(name)
			if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
				return err
			}
			if err := runChecked(t.Context(), s, name, digest); err != nil {
				return err
			}
			return s.Machine.RemoveImage(t.Context(), ref)
		})
	}
	if err := group.Wait(); err != nil {
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
