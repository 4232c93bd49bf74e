package objects_test

import (
	"path/filepath"
	"testing"

	_ "gocloud.dev/blob/memblob" // mem://

	"lighter/hub/objects"
	"lighter/test/testkit/objectstest"
)

// A bucket in memory stands for those that are not directories.
func TestConformance(t *testing.T) {
	for name, url := range map[string]func(dir string) string{
		"directory": func(dir string) string { return "file://" + dir },
		"bucket":    func(string) string { return "mem://" },
	} {
		t.Run(name, func(t *testing.T) {
			objectstest.Run(t, func(t *testing.T) *objects.Store {
				s, err := objects.Open(t.Context(), url(filepath.Join(t.TempDir(), "new")))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, (*testing.T).TempDir)
		})
	}
}

func TestOpenFails(t *testing.T) {
	for _, url := range []string{"nonsense://x", "://", "file:///dev/null/x"} {
		if _, err := objects.Open(t.Context(), url); err == nil {
			t.Errorf("open %s: got no error", url)
		}
	}
}
