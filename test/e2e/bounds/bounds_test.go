//go:build e2e

package bounds

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// size returns the size of a test: soak if LIGHTER_SOAK is set, as in `make soak`, otherwise short.
func size(short, soak int) int {
	if os.Getenv("LIGHTER_SOAK") != "" {
		return soak
	}
	return short
}

// start starts a site with the binary that `make build` made. The site runs until the test ends.
func start(t *testing.T, options site.Options) *site.Site {
	t.Helper()
	var err error
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	return sitetest.Start(t, options)
}

// derive makes n images: each is the image from, with one more layer that has one file, /number.
// Each has its own chain and tree. derive returns the directories of their layouts.
func derive(t *testing.T, s *site.Site, from string, n int) []string {
	t.Helper()
	dirs := make([]string, n)
	for i := range dirs {
		dirs[i] = filepath.Join(s.Dir, "layouts", fmt.Sprintf("%s-%d", from, i))
		err := layout.Extend(images.Dir(from), dirs[i], func(l *layout.Layer) error {
			return l.File("number", fmt.Appendln(nil, i))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// ingest adds the images of layouts to the hub. It names each image after the layout's directory,
// and returns the names.
func ingest(t *testing.T, s *site.Site, layouts ...string) (images []string) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(4)
	for _, dir := range layouts {
		name := filepath.Base(dir)
		images = append(images, name+":latest")
		group.Go(func() error { return s.Hub.AddLayout(t.Context(), dir, name) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return images
}
