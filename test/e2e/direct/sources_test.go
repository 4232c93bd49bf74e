//go:build e2e

package direct

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/stargz"
	"lighter/node/report"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// image returns the status of the only image.
func image(t *testing.T, s *site.Site) report.ImageStatus {
	t.Helper()
	st := sitetest.Status(t, s)
	if len(st.Images) != 1 {
		t.Fatalf("images %+v, want one", st.Images)
	}
	return st.Images[0]
}

// The first source in the configured order that knows an image answers. Status says which one, and
// why those before it did not, also after a restart. A source that is not in the list is not asked.
func TestSources(t *testing.T) {
	s := start(t, site.Options{}, "lazy/*")
	dir := filepath.Join(t.TempDir(), "layout")
	if err := layout.Lazy(t.Context(), images.Dir("base"), dir, stargz.Options{Format: stargz.EStargz}); err != nil {
		t.Fatal(err)
	}
	const noHub = "the hub knows no image with manifest"
	for _, c := range []struct {
		name, sources string
		source        string
		why           []string // is in the reason
		added         bool     // the hub has the image
	}{
		{"a", "hub,tables,soci", "tables", []string{"the tables of contents in ", noHub}, false},
		{"b", "soci,hub,tables", "soci", []string{"the SOCI index in "}, false},
		{"c", "hub", report.SourcePull, []string{noHub}, false},
		{"d", "tables,hub", "tables", []string{"the tables of contents in "}, true},
		{"e", "hub,tables,soci", "hub", []string{"hub http"}, true},
	} {
		name := "lazy/" + c.name
		if err := s.Push(t.Context(), dir, name); err != nil {
			t.Fatal(err)
		}
		ref := site.Reference(name)
		repository := strings.TrimSuffix(ref, ":latest")
		pushIndex(t, dir, repository, usual)
		if c.added {
			if err := s.Hub.Add(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		restart(t, s, "--sources="+c.sources)
		pull(t, s, ref)
		for range 2 {
			i := image(t, s)
			from := ""
			switch c.source {
			case "hub":
				from = s.Hub.URL
			case "tables", "soci":
				from = repository
			}
			if i.Source.Source != c.source || !strings.Contains(i.From, from) ||
				i.Lazy != (c.source != report.SourcePull) {
				t.Errorf("sources %s: %+v, want source %q from %q", c.sources, i, c.source, from)
			}
			for _, want := range c.why {
				if !strings.Contains(i.Why, want) {
					t.Errorf("sources %s: reason %q, want %q in it", c.sources, i.Why, want)
				}
			}
			restart(t, s, "--sources="+c.sources)
		}
		if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
			t.Errorf("sources %s: got %q", c.sources, out)
		}
		if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
}

// restart kills the node, and starts it with more flags.
func restart(t *testing.T, s *site.Site, flags ...string) {
	t.Helper()
	s.Machine.KillNode()
	if err := errors.Join(s.Machine.StartNode(t.Context(), flags...), s.Machine.Reconnect(t.Context())); err != nil {
		t.Fatal(err)
	}
}
