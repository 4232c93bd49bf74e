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
	"lighter/test/testkit/sitetest"
)

// maxMemory bounds the resident memory of a daemon, in bytes.
const maxMemory = 200e6

// The daemon's memory stays within maxMemory while many trees are mounted at the same time, walked
// and partly read.
func TestMemoryWithManyTrees(t *testing.T) {
	s := start(t, site.Options{})
	n := size(24, 200)
	images := ingest(t, s, append(derive(t, s, "base", n/2), derive(t, s, "python", n-n/2)...)...)
	dirs := mountAll(t, s, images)
	mounted := memory(t, s)
	if got := len(sitetest.Status(t, s).Mounts); got != n {
		t.Fatalf("%d trees are mounted, want %d", got, n)
	}
	for _, dir := range dirs {
		readSome(t, dir, 97)
	}
	m := memory(t, s)
	t.Logf("%d trees: up to %d MB resident during the mounts, %d MB in all, %d MB at the end", n,
		mounted.Most/1e6, m.Most/1e6, m.Now/1e6)
	if m.Most > maxMemory {
		t.Errorf("the node had up to %d bytes resident, want %d at most", m.Most, int64(maxMemory))
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

// readSome walks a tree and reads one of every n regular files.
func readSome(t *testing.T, dir string, n int) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if files++; files%n != 0 {
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
	if files < n {
		t.Fatalf("found %d files in %s, want %d at least", files, dir, n)
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
