package imageconfig

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// hub is a Registry with objects by name, and Statements with one statement.
type hub struct {
	objects   map[string][]byte
	statement index.ImageStatement
}

func (h *hub) RegistryObject(_ context.Context, repository, kind, digest string, take func([]byte) error) error {
	object, ok := h.objects[repository+"/"+kind+"/"+digest]
	if !ok {
		return chunk.ErrNotFound
	}
	return take(object)
}

func (h *hub) Image(context.Context, string) (*index.ImageStatement, error) { return &h.statement, nil }

// newHub returns a hub with an image of one layer, and the image as the hub lists it.
func newHub(t *testing.T) (*hub, wire.Image, []byte) {
	t.Helper()
	layers := []digest.Digest{digest.FromString("layer")}
	config, err := json.Marshal(v1.Image{RootFS: v1.RootFS{Type: "layers", DiffIDs: layers}})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(v1.Manifest{Config: v1.Descriptor{Digest: digest.FromBytes(config)}})
	if err != nil {
		t.Fatal(err)
	}
	chain := identity.ChainID(layers).String()
	image := wire.Image{Name: "host.example:1/tools/shell:1", Digest: digest.FromBytes(manifest).String(), Chain: chain}
	h := &hub{objects: map[string][]byte{
		"host.example_1/tools/shell/manifests/" + image.Digest:                  manifest,
		"host.example_1/tools/shell/blobs/" + digest.FromBytes(config).String(): config,
	}, statement: index.ImageStatement{Manifest: image.Digest, Chain: chain,
		Repositories: []string{"host.example:1/tools/shell"}}}
	return h, image, config
}

func TestConfig(t *testing.T) {
	h, image, want := newHub(t)
	got, err := (&Reader{h, h}).Config(t.Context(), image)
	if err != nil || string(got) != string(want) {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

// Whatever a hub, a mirror or a proxy changes, the config is refused.
func TestForgeries(t *testing.T) {
	for name, c := range map[string]struct {
		forge func(h *hub, image *wire.Image)
		want  string
	}{
		"another chain in the statement": {func(h *hub, _ *wire.Image) { h.statement.Chain = "sha256:other" },
			"has chain"},
		"another repository": {func(h *hub, _ *wire.Image) { h.statement.Repositories = []string{"tools/shell"} },
			"does not name repository"},
		"another manifest or config": {func(h *hub, _ *wire.Image) {
			for name := range h.objects {
				h.objects[name] = []byte(`{"config": {}}`)
			}
		}, "its digest is"},
		"layers of another image": {func(h *hub, image *wire.Image) {
			image.Chain, h.statement.Chain = "sha256:mounted", "sha256:mounted"
		}, "is mounted"},
		"a mirror": {func(h *hub, _ *wire.Image) { h.objects = nil }, "a mirror has no configs"},
	} {
		h, image, _ := newHub(t)
		c.forge(h, &image)
		if _, err := (&Reader{h, h}).Config(t.Context(), image); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	h, image, _ := newHub(t)
	for name := range h.objects {
		h.objects[name] = []byte("{}")
	}
	if _, err := (&Reader{h, h}).Config(t.Context(), image); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a wrong object: got %v, want an InvalidError, so that the next hub is asked", err)
	}
}
