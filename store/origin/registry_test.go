package origin

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

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

// A blob of a hub's registry is fetched from the first origin that has it. The next origin is asked
// for the bytes that are still missing. An origin that cannot give a blob still gives other
// objects.
func TestRegistryBlob(t *testing.T) {
	const blob = "0123456789"
	path := wire.RegistryPath("tools/shell", wire.RegistryBlobs, "sha256:1")
	serve := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != path {
				http.NotFound(w, req)
				return
			}
			http.ServeContent(w, req, "", time.Time{}, strings.NewReader(body))
		}
	}
	broken := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte(blob[:4]))
	}
	away := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAVAILABLE","message":"the other registry does not answer"}]}`))
	}
	get := func(f *Failover) (string, error) {
		var got []byte
		err := f.RegistryBlob(t.Context(), "tools/shell", "sha256:1", func() int64 { return int64(len(got)) },
			func(at int64, body io.Reader) error {
				b, err := io.ReadAll(body)
				got = append(got[:at], b...)
				if err == nil && string(got) != blob {
					got = nil
					return &chunk.InvalidError{What: "the blob", Err: errors.New("it is wrong")}
				}
				return err
			})
		return string(got), err
	}
	for what, f := range map[string]*Failover{
		"after a mirror":                   origins(t, http.NotFound, serve(blob)),
		"after broken bytes":               origins(t, broken, serve(blob)),
		"after wrong bytes":                origins(t, serve("wrong"), serve(blob)),
		"after a hub that has no upstream": origins(t, away, serve(blob)),
		"without ranges": origins(t, broken, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(blob))
		}),
	} {
		if got, err := get(f); err != nil || got != blob {
			t.Errorf("%s: got %q, %v; want the blob", what, got, err)
		}
		for _, health := range f.Health() {
			if !health.Up {
				t.Errorf("%s: %s is passed over, want that it is asked for other objects", what, health.URL)
			}
		}
	}
	_, err := get(origins(t, away))
	if err == nil || !strings.Contains(err.Error(), "the other registry does not answer") {
		t.Errorf("got %v, want the registry's message", err)
	}
	if _, err := get(origins(t, http.NotFound)); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("with mirrors alone: got %v, want %v", err, chunk.ErrNotFound)
	}
	full := errors.New("no space left on device")
	err = origins(t, serve(blob), serve(blob)).RegistryBlob(t.Context(), "tools/shell", "sha256:1",
		func() int64 { return 0 }, func(int64, io.Reader) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("got %v, want the caller's error", err)
	}
}
