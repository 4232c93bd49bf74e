package imageconfig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/chunk"
)

// A kept config is read without the hub. A damaged one is not believed: it is read from the hub
// again.
func TestKept(t *testing.T) {
	h, image, want := newHub(t)
	k := &Kept{Dir: t.TempDir(), Reader: &Reader{h, h}}
	objects := h.objects
	read := func(hub bool) ([]byte, error) {
		h.objects = nil
		if hub {
			h.objects = objects
		}
		return k.Config(t.Context(), image)
	}
	if _, err := read(false); !errors.Is(err, chunk.ErrNotFound) {
		t.Fatalf("without a hub: got %v, want an error", err)
	}
	for _, hub := range []bool{true, false, false} {
		if got, err := read(hub); err != nil || string(got) != string(want) {
			t.Fatalf("with a hub %t: got %s, %v; want the config", hub, got, err)
		}
	}
	for _, kind := range []string{"manifests", "blobs"} {
		file := filepath.Join(k.Dir, strings.TrimPrefix(image.Digest, "sha256:"), kind)
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(false); err == nil {
			t.Errorf("damaged %s, without a hub: got no error", kind)
		}
		if got, err := read(true); err != nil || string(got) != string(want) {
			t.Errorf("damaged %s: got %s, %v; want the hub's config", kind, got, err)
		}
	}
	if err := k.Forget(image.Digest); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(k.Dir); err != nil || len(left) != 0 {
		t.Errorf("%d directories are left (%v)", len(left), err)
	}
	for _, bad := range []string{"", "..", "sha256:../../x"} {
		image.Digest = bad
		if _, err := read(true); err == nil {
			t.Errorf("manifest %q: got no error", bad)
		}
	}
}
