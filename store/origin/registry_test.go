package origin

import (
	"errors"
	"net/http"
	"testing"

	"lighter/format/chunk"
	"lighter/wire"
)

// An object of a hub's registry comes from the first origin that has it as it should be: mirrors
// have no registry, and a wrong object is requested from the next one.
func TestRegistryObject(t *testing.T) {
	path := wire.RegistryPath("tools/shell", wire.RegistryManifests, "sha256:1")
	object := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != path || req.Header.Get("Accept") == "" {
				http.NotFound(w, req)
				return
			}
			_, _ = w.Write([]byte(body))
		}
	}
	var got string
	take := func(b []byte) error {
		if string(b) == "wrong" {
			return &chunk.InvalidError{What: "the object", Err: errors.New("it is wrong")}
		}
		got = string(b)
		return nil
	}
	mirror := http.NotFound
	f := origins(t, mirror, object("wrong"), object("right"))
	err := f.RegistryObject(t.Context(), "tools/shell", wire.RegistryManifests, "sha256:1", take)
	if err != nil || got != "right" {
		t.Errorf("got %q, %v; want the right object", got, err)
	}
	err = origins(t, mirror).RegistryObject(t.Context(), "tools/shell", wire.RegistryManifests, "sha256:1", take)
	if !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("with mirrors alone: got %v, want %v", err, chunk.ErrNotFound)
	}
}
