package direct

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// indexed returns a layer with files of several spans, as a SOCI index describes it.
func indexed(t *testing.T, prefetch []soci.Spans) (l *layer.Layer, blob []byte) {
	t.Helper()
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // it never fails
	blob = tarball.Of(tarball.File("large", string(noise)), tarball.File("small", "small"))
	ztoc, err := soci.Make(bytes.NewReader(blob), soci.Options{Compression: soci.Uncompressed, SpanSize: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	table, err := soci.Decode(ztoc, limits)
	if err != nil {
		t.Fatal(err)
	}
	to, err := table.Map(chunk.Sum(blob), int64(len(blob)), prefetch)
	if err != nil {
		t.Fatal(err)
	}
	return to, blob
}

// writtenTree writes a tree of the layers to a directory, and returns its locations.
func writtenTree(t *testing.T, dir string, layers ...*layer.Layer) (id chunk.ID, locations *index.Locations) {
	t.Helper()
	var sources []tree.LayerSource
	for _, l := range layers {
		sources = append(sources, l.Source())
	}
	merged, err := tree.Apply(t.Context(), sources, limits)
	if err != nil {
		t.Fatal(err)
	}
	m, err := write(dir, merged, layers, func() error { return writeTables(dir, layers) })
	if err != nil {
		t.Fatal(err)
	}
	id = m.tree
	b, err := os.ReadFile(filepath.Join(dir, "locations"))
	if err != nil {
		t.Fatal(err)
	}
	made, err := index.Make(merged, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	extents := int64(0)
	if err := made.Refs(func(int64, chunk.Ref) error { extents++; return nil }); err != nil {
		t.Fatal(err)
	}
	if locations, err = index.OpenLocations(bytes.NewReader(b), int64(len(b)), id, extents); err != nil {
		t.Fatal(err)
	}
	return id, locations
}

// The units that a start reads are a pack of their own, which is fetched at mount, wherever they
// are in the layer. The pack is kept, and its units are parts of the layer's blob.
func TestFirstUnits(t *testing.T) {
	m := open(t, t.TempDir())
	l, blob := indexed(t, []soci.Spans{{First: 8, Last: 8}, {First: 3, Last: 4}})
	fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	id, locations := writtenTree(t, fresh, l)
	startups := locations.Startups()
	if len(startups) != 1 || !startups[0].AtMount || len(startups[0].Units) != 3 ||
		startups[0].Pack == chunk.Sum(blob) {
		t.Fatalf("startup packs %+v, want one of three units", startups)
	}
	im := image{Places: []place{{"registry.test/a", digest.FromString("x"), false}}, DiffIDs: []digest.Digest{"x"},
		Layers: []v1.Descriptor{{Digest: digest.FromBytes(blob), Size: int64(len(blob))}},
		First:  []firstPack{{0, startups[0].Pack}}}
	text, err := json.Marshal(im)
	if err := errors.Join(err, os.WriteFile(filepath.Join(fresh, "image"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := m.kept.publish(id, fresh, im, nil); err != nil {
		t.Fatal(err)
	}
	inFirst := 0
	err = locations.Each(func(_ int64, u chunk.Unit) error {
		kept := m.kept.layersOf(u.Pack)
		if len(kept) != 1 || kept[0].descriptor.Digest != im.Layers[0].Digest {
			t.Fatalf("unit %+v is in %d layers, want the only one", u, len(kept))
		}
		unit, err := kept[0].table.Unit(u.N)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unit.Decode(blob[unit.Offset:][:unit.Stored]); err != nil {
			t.Error(err)
		}
		span := unit.Offset / 100_000
		if isFirst := span == 3 || span == 4 || span == 8; isFirst != (u.Pack == startups[0].Pack) {
			t.Errorf("the chunk of span %d is in unit %+v", span, u)
		}
		if u.Pack == startups[0].Pack {
			inFirst++
			if startups[0].Units[u.N] != uint32(unit.Stored) {
				t.Errorf("unit %d has %d bytes, want %d", u.N, startups[0].Units[u.N], unit.Stored)
			}
		}
		return nil
	})
	if err != nil || inFirst < 3 {
		t.Errorf("%d chunks in the startup pack, %v, want one of each unit", inFirst, err)
	}
	if err := os.Remove(m.kept.path(id, startups[0].Pack.String())); err != nil {
		t.Fatal(err)
	}
	if err := m.kept.open(id); err == nil {
		t.Error("a tree without the table of its first units was opened")
	}
	m.kept.discard(id)
	if m.kept.layersOf(startups[0].Pack) != nil || m.kept.layersOf(chunk.Sum(blob)) != nil {
		t.Error("a removed tree has packs")
	}
}

// Without a list, there is no startup pack, and a number that no layer has is refused.
func TestNoFirstUnits(t *testing.T) {
	m := open(t, t.TempDir())
	l, _ := indexed(t, nil)
	if _, locations := writtenTree(t, t.TempDir(), l); len(locations.Startups()) > 0 {
		t.Errorf("startup packs %+v, want none", locations.Startups())
	}
	id, pack := keep(t, m, "a")
	im := *m.kept.imageOf(id)
	im.First = []firstPack{{1, pack}}
	text, err := json.Marshal(im)
	if err := errors.Join(err, os.WriteFile(m.kept.path(id, "image"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := m.kept.open(id); err == nil {
		t.Error("a tree with the first units of no layer was opened")
	}
}
