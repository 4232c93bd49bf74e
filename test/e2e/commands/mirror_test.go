//go:build e2e

package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"lighter/mirror"
	"lighter/wire"
)

// `lighter mirror` copies an image. A second run fetches nothing.
func TestMirror(t *testing.T) {
	pushImage(t, "mirrored/image", "mirror")
	image := ready(t, "mirrored/image:1")
	dir := filepath.Join(t.TempDir(), "mirror")
	run(t, nil, lighter, "mirror").bad(t, 2, "DIR")
	run(t, nil, lighter, "mirror", dir, "no/such:1").bad(t, 1, "no/such:1")
	run(t, nil, lighter, "mirror", "--hub", "http://127.0.0.1:1", dir, "mirrored/image:1").bad(t, 1, "127.0.0.1:1")
	var first, second mirror.Result
	for _, into := range []*mirror.Result{&first, &second} {
		if err := json.Unmarshal([]byte(good(t, lighter, "mirror", "--json", dir, "mirrored/image:1")),
			into); err != nil {
			t.Fatal(err)
		}
	}
	if len(first.Images) != 1 || first.Trees == 0 || first.Fetched == 0 || second.Fetched != 0 || second.Kept == 0 {
		t.Errorf("the first run reported %+v and the second %+v, want one image with a tree, fetched only by the first",
			first, second)
	}
	for _, name := range []string{"key", "chains/" + image.Chain, "trees/" + image.Chain, "indexes/" + image.Tree,
		"locations/" + image.Tree} {
		info, err := os.Stat(filepath.Join(dir, wire.Prefix, wire.DefaultDomain, name))
		if err != nil || info.Mode().Perm() != 0o644 || info.Size() == 0 {
			t.Errorf("file %s of the mirror: got %+v (%v), want it not empty, with mode 0644", name, info, err)
		}
	}
}
