package imageconfig

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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
	for _, wanted := range []bool{true, false} {
		if err := k.Forget(image.Digest, func() bool { return wanted }); err != nil {
			t.Fatal(err)
		}
		if _, err := read(false); (err == nil) != wanted {
			t.Errorf("forgotten, and wanted: %t: got %v", wanted, err)
		}
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

// Several names of one manifest may be read at the same time.
func TestKeptByNames(t *testing.T) {
	h, image, want := newHub(t)
	for range 5 {
		k := &Kept{Dir: t.TempDir(), Reader: &Reader{h, h}}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if got, err := k.Config(t.Context(), image); err != nil || string(got) != string(want) {
					t.Errorf("got %s, %v; want the config", got, err)
				}
			})
		}
		group.Wait()
	}
}

// A config stays kept if its image gets a user at the moment when the last one has gone.
func TestKeptForANewUser(t *testing.T) {
	h, image, _ := newHub(t)
	for range 50 {
		k := &Kept{Dir: t.TempDir(), Reader: &Reader{h, h}}
		if _, err := k.Config(t.Context(), image); err != nil {
			t.Fatal(err)
		}
		var users atomic.Int32
		var group sync.WaitGroup
		wanted := func() bool {
			wanted := users.Load() > 0
			group.Go(func() {
				users.Add(1)
				if _, err := k.Config(t.Context(), image); err != nil {
					t.Error(err)
				}
			})
			runtime.Gosched()
			return wanted
		}
		if err := k.Forget(image.Digest, wanted); err != nil {
			t.Fatal(err)
		}
		group.Wait()
		if _, err := (&Kept{Dir: k.Dir, Reader: &Reader{h, &hub{}}}).Config(t.Context(), image); err != nil {
			t.Fatalf("the config that was read is not kept: %v", err)
		}
	}
}
