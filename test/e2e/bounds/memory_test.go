//go:build e2e

package bounds

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"lighter/node/control"
	"lighter/test/testkit/site"
)

// maxMemory bounds the resident memory of a daemon, in bytes.
const maxMemory = 200e6

// The daemon's memory stays small with many trees, also if all of them are mounted at once, walked
// and read in many places.
func TestMemoryWithManyTrees(t *testing.T) {
	s := start(t, site.Options{})
	n := size(24, 200)
	images := ingest(t, s, append(derive(t, s, "base", n/2), derive(t, s, "python", n-n/2)...)...)
	dirs := mountAll(t, s, images)
	arrived := memory(t, s)
	if got := len(status(t, s).Mounts); got != n {
		t.Fatalf("%d trees are mounted, want %d", got, n)
	}
	const each = 97 // read every 97th file: a few in each directory
	for _, dir := range dirs {
		readSome(t, dir, each)
	}
	m := memory(t, s)
	t.Logf("%d trees: %d MB at most during the mounts, %d MB with reads, %d MB at the end", n, arrived.Most/1e6,
		m.Most/1e6, m.Now/1e6)
	if m.Most > maxMemory {
		t.Errorf("the node had %d bytes resident, the most is %d", m.Most, int64(maxMemory))
	}
}

// mountAll mounts images concurrently until the test ends, and returns their mount points.
func mountAll(t *testing.T, s *site.Site, images []string) []string {
	t.Helper()
	control := control.New(s.Machine.NodeRoot())
	dirs := make([]string, len(images))
	var group errgroup.Group
	for i, image := range images {
		dirs[i] = t.TempDir()
		group.Go(func() error {
			err := control.Mount(t.Context(), image, "", dirs[i])
			if err == nil {
				t.Cleanup(func() {
					if err := control.Unmount(context.WithoutCancel(t.Context()), dirs[i]); err != nil {
						t.Error(err)
					}
				})
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return dirs
}

// readSome reads every each-th file of a tree.
func readSome(t *testing.T, dir string, each int) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if seen++; seen%each != 0 {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(io.Discard, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < each {
		t.Fatalf("found only %d files in %s", seen, dir)
	}
}

func memory(t *testing.T, s *site.Site) site.Memory {
	t.Helper()
	m, err := s.Machine.NodeMemory()
	if err != nil {
		t.Fatal(err)
	}
	return m
}
