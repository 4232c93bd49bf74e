package direct

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store"
	"lighter/test/testkit/cachetest"
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
	r, _, m, tree := startAttached(t)
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

// If the registry has lost a layer of an image with an attached index, reads of its chunks fail
// with an error that names it. When the layer is there again, they work.
func TestLostLayerOfAttached(t *testing.T) {
	r, im, m, tree := startAttached(t)
	lost := im.Layers[0].Digest
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		isLost := strings.HasSuffix(req.URL.Path, lost.String())
		if isLost {
			http.NotFound(w, req)
		}
		return isLost
	})
	failed := 0
	eachUnit(t, m, tree, func(u chunk.Unit) {
		err := fetch(t, m, u)
		if u.Pack.String() != lost.Encoded() {
			if err != nil {
				t.Errorf("unit %+v, which is not lost: %v", u, err)
			}
			return
		}
		if failed++; !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), lost.String()) {
			t.Errorf("unit %+v: got %v, want that %s is lost", u, err, lost)
		}
	})
	if failed == 0 {
		t.Error("no chunk was in the lost layer")
	}
	r.Spoil(nil)
	readAll(t, m, tree)
}

// A startup pack that cannot be read at all is not missing in the layers: readers go on to these.
func TestDeniedStartupPack(t *testing.T) {
	r, _, m, _ := startAttached(t)
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

// A registry that gives another range of a layer or of a startup pack than was asked for, or other
// bytes, gives no chunk: the units of an attached index have no digests, and each chunk is compared
// with its own, whether answers are decoded while they arrive or afterwards.
func TestWrongRangeOfAttached(t *testing.T) {
	r, _, m, tree := startAttached(t)
	readAll(t, m, tree)
	refs := refsOf(t, m, tree)
	blobs := map[string][]byte{} // by the ends of their paths
	for _, l := range m.kept.trees[tree].layers {
		d := l.descriptor
		from, err := m.open(m.kept.repositories(l)[0])
		if err != nil {
			t.Fatal(err)
		}
		if blobs[d.Digest.String()], err = from.Blob(t.Context(), d, d.Size); err != nil {
			t.Fatal(err)
		}
	}
	if len(blobs) != 3 {
		t.Fatalf("%d blobs, want two layers and a startup pack", len(blobs))
	}
	for what, spoil := range map[string]func(blob []byte) []byte{
		"a range that is one byte behind": func(blob []byte) []byte { return append([]byte{0}, blob[:len(blob)-1]...) },
		"a range that is 1 KiB ahead": func(blob []byte) []byte {
			return append(bytes.Clone(blob[1<<10:]), blob[:1<<10]...)
		},
		"the range of another blob": func(blob []byte) []byte {
			for _, b := range blobs {
				if !bytes.Equal(b, blob) {
					return append(bytes.Clone(b), blob...)[:len(blob)]
				}
			}
			return nil
		},
		"a range with a wrong byte in each KiB": func(blob []byte) []byte {
			blob = bytes.Clone(blob)
			for i := 500; i < len(blob); i += 1 << 10 {
				blob[i] ^= 1
			}
			return blob
		},
	} {
		for how, change := range decodings {
			r.Spoil(nil)
			good := readThrough(t, observe(m, change), cachetest.NewMemory(), refs)
			var spoiled atomic.Int32
			r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
				_, end, _ := strings.Cut(req.URL.Path, "/blobs/")
				if blobs[end] == nil {
					return false
				}
				spoiled.Add(1)
				http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(spoil(blobs[end])))
				return true
			})
			what := what + ", decoded " + how
			if failed := readWrong(t, m, change, what, good); failed != len(good) || spoiled.Load() == 0 {
				t.Errorf("%s: %d of %d chunks could not be read; %d wrong ranges were sent", what, failed, len(good),
					spoiled.Load())
			}
		}
	}
	r.Spoil(nil)
	readAll(t, m, tree)
}
