package direct

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/test/testkit/registrytest"
)

// noHubs are the hubs of a node that has none.
type noHubs struct{ Hubs }

// readAll reads all chunks of a tree where its locations say, and returns how many are in startup
// packs.
func readAll(t *testing.T, m *Images, tree chunk.ID) (inPacks int) {
	t.Helper()
	eachUnit(t, m, tree, func(u chunk.Unit) {
		if err := fetch(t, m, u); err != nil {
			t.Errorf("unit %+v: %v", u, err)
		}
		if m.kept.layersOf(u.Pack)[0].startup != nil {
			inPacks++
		}
	})
	if inPacks == 0 {
		t.Error("no chunk is in a startup pack")
	}
	return inPacks
}

func fetch(t *testing.T, m *Images, u chunk.Unit) error {
	return m.Source(noHubs{}).FetchUnit(t.Context(), u, func(a store.Answer) error {
		_, err := decoded(a)
		return err
	})
}

// decoded reads and decodes an answer, and verifies its chunks.
func decoded(a store.Answer) (store.Batch, error) {
	b, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, err
	}
	batch, err := a.Decode(b)
	for i := 0; err == nil && i < batch.Len(); i++ {
		_, err = batch.Chunk(i)
	}
	return batch, err
}

func eachUnit(t *testing.T, m *Images, tree chunk.ID, fn func(chunk.Unit)) {
	t.Helper()
	b, err := os.ReadFile(m.kept.path(tree, "locations"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(m.kept.path(tree, "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	header, err := index.ReceiveHeader(file, tree)
	if err != nil {
		t.Fatal(err)
	}
	locations, err := index.OpenLocations(strings.NewReader(string(b)), int64(len(b)), tree, header.Extents)
	if err != nil {
		t.Fatal(err)
	}
	if err := locations.Each(func(_ int64, u chunk.Unit) error { fn(u); return nil }); err != nil {
		t.Fatal(err)
	}
}

// If the registry has lost a startup pack, its chunks are found in the layers.
func TestLostStartupPack(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, _ := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	m := believing(t, r, t.TempDir(), key)
	answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if err != nil {
		t.Fatal(err)
	}
	tree := answer.Image.Statement.Tree
	_, kept, _ := m.kept.find(func(*image) bool { return true })
	lost := kept.Packs[0].Blob.Digest.String()
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, lost) {
			http.NotFound(w, req)
		}
		return strings.HasSuffix(req.URL.Path, lost)
	})
	places, err := m.kept.trees[tree].places()
	if err != nil {
		t.Fatal(err)
	}
	fetched := 0
	eachUnit(t, m, tree, func(u chunk.Unit) {
		if m.kept.layersOf(u.Pack)[0].startup == nil {
			return
		}
		if err := fetch(t, m, u); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("a unit of the lost pack: %v, want that it is not found", err)
		}
		for id := range places[1].Units { // any chunk of the layer that was recorded
			ref := chunk.Ref{ID: id, Unit: u}
			err := m.Source(noHubs{}).Fetch(t.Context(), ref, func(a store.Answer) error {
				batch, err := decoded(a)
				if err == nil {
					_, err = batch.Lookup(id)
				}
				return err
			})
			if err != nil {
				t.Errorf("chunk %s: %v", id.Short(), err)
			}
			fetched++
		}
	})
	if fetched == 0 {
		t.Error("no chunk was in the startup pack")
	}
}

// A startup pack that cannot be read at all is not missing in the layers: readers go on to these.
func TestDeniedStartupPack(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, _ := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	m := believing(t, r, t.TempDir(), key)
	if _, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref)); err != nil {
		t.Fatal(err)
	}
	_, kept, _ := m.kept.find(func(*image) bool { return true })
	id, err := kept.Packs[0].ID()
	if err != nil {
		t.Fatal(err)
	}
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		denied := strings.HasSuffix(req.URL.Path, kept.Packs[0].Blob.Digest.String())
		if denied {
			w.WriteHeader(http.StatusForbidden)
		}
		return denied
	})
	var unavailable store.Unavailable
	if err := fetch(t, m, chunk.Unit{Pack: id}); !errors.As(err, &unavailable) || !unavailable.Missed() {
		t.Errorf("a denied startup pack: %v, want that another unit may have its chunks", err)
	}
}
