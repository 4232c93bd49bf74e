package imagestore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An image is found by the names that it has on the hub, and by its digest in its own repository.
func TestFind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := Create(dir); err != nil {
		t.Fatal(err)
	}
	id, digest := strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	i := image{ID: id, Names: []string{"localhost/tools/shell:1", "docker.io/library/shell:latest"}, Layer: "top",
		BigDataNames: []string{manifestKey, manifestPrefix + digest}}
	if _, err := replaceJSON(imagesFile(dir), []image{i}); err != nil {
		t.Fatal(err)
	}
	if err := writeImage(dir, id, map[string][]byte{"sha256:" + id: []byte("config")}); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"tools/shell:1"}, {"localhost/tools/shell:1"}, {"none:1", "tools/shell:1"},
		{"docker.io/library/shell"}, {"tools/shell@" + digest}} {
		found, err := Find(dir, names)
		if err != nil || string(found.Config) != "config" || found.Tree != filepath.Join(dir, "overlay/top/diff") {
			t.Errorf("%q: got %s with config %s, %v; want the image", names, found.Tree, found.Config, err)
		}
	}
	for _, names := range [][]string{{"tools/shell:2"}, {"shell:1"}, {"tools/other@" + digest},
		{"tools/sh@" + digest}} {
		if _, err := Find(dir, names); !errors.Is(err, ErrNoImage) || !strings.Contains(err.Error(), names[0]) {
			t.Errorf("%q: got %v, want that there is no such image", names, err)
		}
	}
	if _, err := Find(dir, []string{"A:b:c"}); err == nil {
		t.Error("a name that is no name: got no error")
	}
	if _, err := Find(filepath.Join(dir, "none"), []string{"a:1"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no store: got %v", err)
	}
	if err := os.WriteFile(imagesFile(dir), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(dir, []string{"a:1"}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a damaged store: got %v, want an error that names it", err)
	}
}
