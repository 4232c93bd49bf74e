package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/store/origin"
	"lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// noise returns incompressible bytes, the same for the same seed.
func noise(seed uint64, n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return string(b)
}

var (
	lowerTar = tarball.Of(tarball.Dir("etc"), tarball.File("etc/small", "small"),
		tarball.File("etc/large", noise(1, 60_000)),
		tarball.File("etc/same", noise(2, 20_000)), tarball.Symlink("link", "etc/large"))
	upperTar = tarball.Of(tarball.File("etc/new", noise(3, 30_000)), tarball.Whiteout("etc/small"),
		tarball.File("copy", noise(2, 20_000)))
)

// fetchTree reads a whole tree as a node does, and verifies it: statement, index, locations, units.
// It returns the bytes of all chunks by ID.
func (h *testHub) fetchTree(chain string) (index.Header, map[chunk.ID][]byte) {
	h.t.Helper()
	return fetchTree(h.t, h.client, chain, true)
}

// fetchTree reads a whole tree from any origin. With byID it requests each chunk by its ID, too.
func fetchTree(t *testing.T, hub *client.Client, chain string, byID bool) (index.Header, map[chunk.ID][]byte) {
	t.Helper()
	ctx := t.Context()
	from := originsOf(t, hub)
	keys, err := from.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	statement, err := from.Tree(ctx, chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := statement.Verify(chain, keys); err != nil {
		t.Fatal(err)
	}
	header, chunks, err := readTreeOf(t, from, statement.Tree, byID)
	if err != nil {
		t.Fatal(err)
	}
	return header, chunks
}

// readTree reads all chunks of a tree by their units. With byID it requests each chunk by its ID,
// too.
func readTree(t *testing.T, from *origin.Failover, tree chunk.ID, byID bool) error {
	t.Helper()
	_, _, err := readTreeOf(t, from, tree, byID)
	return err
}

func readTreeOf(
	t *testing.T, from *origin.Failover, tree chunk.ID, byID bool,
) (header index.Header, chunks map[chunk.ID][]byte, err error) {
	t.Helper()
	ctx := t.Context()
	var extents bytes.Buffer
	err = from.Index(ctx, tree, func(plain io.Reader) (err error) {
		header, err = index.Receive(plain, tree, &extents, io.Discard)
		return err
	})
	if err != nil {
		return header, nil, err
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), tree, index.NewPages(64))
	if err != nil {
		return header, nil, err
	}
	var locations *index.Locations
	if err := from.Locations(ctx, tree, chunk.ID{}, func(plain io.Reader) error {
		b, err := io.ReadAll(plain)
		if err == nil {
			locations, err = index.OpenLocations(bytes.NewReader(b), int64(len(b)), tree, header.Extents)
		}
		return err
	}); err != nil {
		return header, nil, err
	}
	chunks = map[chunk.ID][]byte{}
	for i := range header.Extents {
		e, err := m.Extent(i)
		if err != nil {
			return header, nil, err
		}
		unit, err := locations.Unit(i)
		if err != nil {
			return header, nil, err
		}
		take := func(a store.Answer) error {
			encoded, err := io.ReadAll(a.Body)
			if err != nil {
				return err
			}
			decoded, err := pack.DecodeUnit(encoded)
			if err == nil {
				chunks[e.ID], err = decoded.Lookup(e.ID)
			}
			if err != nil {
				return &chunk.InvalidError{What: "unit", Err: err}
			}
			return nil
		}
		if err := from.FetchUnit(ctx, unit, take); err != nil {
			return header, nil, err
		}
		if !byID {
			continue
		}
		if err := from.Fetch(ctx, chunk.Ref{ID: e.ID}, take); err != nil {
			return header, nil, err
		}
	}
	return header, chunks, nil
}

func fetchLocations(t *testing.T, from *origin.Failover, header index.Header) (locations *index.Locations) {
	t.Helper()
	locations, _ = fetchNewer(t, from, header, chunk.ID{})
	return locations
}

// fetchNewer returns a tree's locations and their SHA-256. It returns nil if have is the SHA-256 of
// the current locations.
func fetchNewer(t *testing.T, from *origin.Failover, header index.Header, have chunk.ID) (locations *index.Locations,
	sum chunk.ID) {
	t.Helper()
	err := from.Locations(t.Context(), header.ID(), have, func(plain io.Reader) error {
		b, err := io.ReadAll(plain)
		if err == nil {
			sum = chunk.Sum(b)
			locations, err = index.OpenLocations(bytes.NewReader(b), int64(len(b)), header.ID(), header.Extents)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return locations, sum
}

func TestPushedImageCanBeRead(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	digest := h.push("foo/bar:1", image(lowerTar, upperTar))
	got := h.ready("foo/bar:1")
	if got.Name != "foo/bar:1" || got.Digest != digest.String() || got.Platform != "linux/amd64" || got.Error != "" {
		t.Errorf("image %+v, want foo/bar:1 for linux/amd64 with digest %s and no error", got, digest)
	}
	header, chunks := h.fetchTree(got.Chain)
	if header.ID().String() != got.Tree {
		t.Errorf("tree %s, want the image's, %s", header.ID(), got.Tree)
	}
	var all int
	for _, b := range chunks {
		all += len(b)
	}
	if want := 60_000 + 20_000 + 30_000; all != want || header.DistinctBytes != int64(want) {
		t.Errorf("%d bytes of chunks, %d in the header, want %d", all, header.DistinctBytes, want)
	}
}

func TestImagesOfAllKinds(t *testing.T) {
	t.Parallel()
	zstdEncoder, _ := zstd.NewWriter(nil)
	half := len(lowerTar) / 2
	for name, i := range map[string]fakeImage{
		"docker": {layers: []fakeLayer{{tar: lowerTar}}, docker: true},
		"plain":  {layers: []fakeLayer{{tar: lowerTar, blob: lowerTar, mediaType: v1.MediaTypeImageLayer}}},
		"zstd": {layers: []fakeLayer{{tar: lowerTar, blob: zstdEncoder.EncodeAll(lowerTar, nil),
			mediaType: v1.MediaTypeImageLayerZstd}}},
		"zstd with a skip": {layers: []fakeLayer{{tar: lowerTar, blob: zstdEncoder.EncodeAll(lowerTar,
			[]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9}), mediaType: v1.MediaTypeImageLayerZstd}}},
		"gzip, two members": {layers: []fakeLayer{{tar: lowerTar,
			blob: append(gzipped(lowerTar[:half]), gzipped(lowerTar[half:])...)}}},
		"plain, said gzip": {layers: []fakeLayer{{tar: lowerTar, blob: lowerTar,
			mediaType: v1.MediaTypeImageLayerGzip}}},
		"an empty layer": image(lowerTar, tarball.Of()),
		"the same twice": image(lowerTar, lowerTar),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			got := h.pushReady("a:1", i)
			if header, _ := h.fetchTree(got.Chain); header.Files == 0 {
				t.Error("the tree is empty")
			}
		})
	}
}

func TestNothingIsStoredTwice(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	first := h.pushReady("a:1", image(lowerTar, upperTar))
	once := h.holdings()
	for name, i := range map[string]fakeImage{
		"a:2": image(lowerTar, upperTar),
		"b:1": {layers: image(lowerTar, upperTar).layers, docker: true},
		"other/compression:1": {layers: []fakeLayer{{tar: lowerTar, blob: lowerTar,
			mediaType: v1.MediaTypeImageLayer}, {tar: upperTar}}},
		"in/another/registry:1": image(lowerTar, upperTar),
	} {
		h.push(name, i)
		if got := h.ready(name); got.Tree != first.Tree || got.Chain != first.Chain {
			t.Errorf("%s has tree %s of chain %s, want %s of %s", name, got.Tree, got.Chain, first.Tree, first.Chain)
		}
		if now := h.holdings(); fmt.Sprint(now) != fmt.Sprint(once) {
			t.Errorf("%s: the hub has\n%v\nwant\n%v", name, now, once)
		}
	}
	// Another layer with the same files adds a record and a tree, but no chunk.
	h.pushReady("moved:1", image(tarball.Of(tarball.File("moved", noise(1, 60_000)), tarball.File("small", "small"))))
	now := h.holdings()
	if now.inventory.Chunks != once.inventory.Chunks || now.inventory.Packs != once.inventory.Packs ||
		now.inventory.Layers != once.inventory.Layers+1 {
		t.Errorf("the hub has %+v after %+v, want one more layer and no more chunks", now.inventory, once.inventory)
	}
}

// The tree ID depends only on the image: not on other images of the hub, on the number of
// processors, or on the manifest's media type.
func TestTreeIDIsReproducible(t *testing.T) {
	i := image(lowerTar, upperTar)
	empty := startHub(t)
	want := empty.pushReady("a:1", i).Tree

	full := startHub(t)
	full.push("before:1", image(tarball.Of(tarball.File("x", noise(3, 30_000)), tarball.File("y", noise(2, 20_000)))))
	full.pushReady("before:2", image(upperTar))
	if got := full.pushReady("b:1", i).Tree; got != want {
		t.Errorf("tree %s on a hub with other images, %s on an empty one", got, want)
	}

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	alone := startHub(t)
	if got := alone.pushReady("c:1", fakeImage{layers: i.layers, docker: true}).Tree; got != want {
		t.Errorf("tree %s with one processor, %s with several", got, want)
	}
}

func TestTreesOnRequest(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	top := h.pushReady("a:1", image(lowerTar, upperTar))
	lower := digest.FromBytes(lowerTar).String()
	chain, err := h.client.Chain(t.Context(), lower)
	if err != nil {
		t.Fatal(err)
	}
	if chain.DiffID != lower || chain.Parent != "" || chain.Statement != nil || !chain.Complete ||
		len(chain.Above) != 1 ||
		chain.Above[0].Chain != top.Chain || chain.Above[0].Parent != lower || chain.Above[0].Statement == nil {
		t.Errorf("the lower chain is %+v, want it complete, without statement and below the top chain", chain)
	}
	header, _ := h.fetchTree(lower)

	other := startHub(t)
	if want := other.pushReady("b:1", image(lowerTar)).Tree; header.ID().String() != want {
		t.Errorf("the lower chain has tree %s, want that of an image of that layer, %s", header.ID(), want)
	}
	// The tree exists now, but the chain is announced without a statement: it is no image's top.
	if chain, err = h.client.Chain(t.Context(), lower); err != nil || chain.Statement != nil {
		t.Errorf("the lower chain is %+v, %v, want no statement", chain, err)
	}
	h.pushReady("base:1", image(lowerTar))
	if chain, err = h.client.Chain(t.Context(), lower); err != nil || chain.Statement == nil ||
		chain.Statement.Tree != header.ID() {
		t.Errorf("as an image's top, the chain is %+v, %v, want a statement", chain, err)
	}
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	id := strings.Repeat("ab", 32)
	for path, want := range map[string]int{
		"/lighter/1/default/chains/sha256:" + id:      404,
		"/lighter/1/default/trees/sha256:" + id:       404,
		"/lighter/1/default/chains/nonsense":          404,
		"/lighter/1/default/indexes/" + id:            404,
		"/lighter/1/default/indexes/" + id[1:]:        400,
		"/lighter/1/default/locations/" + id:          404,
		"/lighter/1/default/packs/" + id + "/0":       404,
		"/lighter/1/default/packs/" + id + "/-1":      400,
		"/lighter/1/default/packs/" + id + "/01":      400,
		"/lighter/1/default/packs/../../catalog.db/0": 404,
		"/lighter/1/default/chunks/" + id:             404,
		"/lighter/1/default/chunks/x":                 400,
		"/lighter/1/other/key":                        404,
		"/lighter/2/default/key":                      404,
		"/lighter/1/default/images?name=A:B:C":        400,
		"/lighter/1/default/images/inspect":           400,
		"/lighter/1/default/images/inspect?name=b":    404,
		"/": 404,
	} {
		status, body, header := h.do("GET", path, nil)
		if status != want || !bytes.Contains(body, []byte(`{"error":"`)) {
			t.Errorf("%s: %d %s, want %d", path, status, body, want)
		}
		served := strings.HasPrefix(path, "/lighter/1/default/") && !strings.Contains(path, "..")
		if own := header.Get(wire.MissingHeader) != ""; own != (want == 404 && served) {
			t.Errorf("%s: the header that marks the hub's own 404 is set: %t, want %t", path, own, !own)
		}
	}
	for path, want := range map[string]int{"DELETE /lighter/1/default/images?name=b": 404,
		"DELETE /lighter/1/default/images": 400,
		"POST /lighter/1/default/images":   400, "POST /lighter/1/default/images/verify?name=b": 404,
		"PUT /lighter/1/default/key": 404} {
		method, path, _ := strings.Cut(path, " ")
		if status, body, _ := h.do(method, path, []byte("{")); status != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, status, body, want)
		}
	}
}

func TestImmutableObjects(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	got := h.pushReady("a:1", image(lowerTar))
	packs := files(t, objectsDir(h.config)+"/packs")
	for path, immutable := range map[string]bool{
		"/lighter/1/default/indexes/" + got.Tree:      true,
		"/lighter/1/default/packs/" + packs[0] + "/0": true,
		"/lighter/1/default/locations/" + got.Tree:    false,
		"/lighter/1/default/chains/" + got.Chain:      false,
		"/lighter/1/default/trees/" + got.Chain:       false,
	} {
		status, body, header := h.do("GET", path, nil)
		if status != 200 || header.Get("Content-Length") != fmt.Sprint(len(body)) {
			t.Errorf("%s: %d, %d bytes with Content-Length %s, want 200 and all bytes", path, status, len(body),
				header.Get("Content-Length"))
		}
		if isMarked := strings.Contains(header.Get("Cache-Control"), "immutable"); isMarked != immutable {
			t.Errorf("%s: Cache-Control is %q, want immutable in it: %t", path, header.Get("Cache-Control"), immutable)
		}
		if tag := header.Get("ETag"); immutable {
			if status, body, _ := h.do("GET", path, nil, "If-None-Match", tag); status != http.StatusNotModified ||
				len(body) > 0 {
				t.Errorf("%s: %d for an unchanged object, want 304", path, status)
			}
		}
		if _, body, head := h.do("HEAD", path, nil); len(body) > 0 ||
			head.Get("Content-Length") != header.Get("Content-Length") {
			t.Errorf("%s: HEAD answers %d bytes with Content-Length %q, want no bytes and that of GET", path, len(body),
				head.Get("Content-Length"))
		}
	}
}

func TestUniqueSizes(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar))
	h.push("b:1", image(lowerTar, upperTar))
	h.push("b:again", image(lowerTar, upperTar))
	h.ready("a:1")
	h.ready("b:1")
	h.ready("b:again")
	var images []wire.Image
	for end := time.Now().Add(time.Minute); len(images) == 0 || images[0].SizesPending; time.Sleep(time.Millisecond) {
		var err error
		if images, err = h.client.Images(t.Context(), ""); err != nil || len(images) != 3 || time.Now().After(end) {
			t.Fatalf("after at most a minute: images %+v, %v, want three with their sizes", images, err)
		}
	}
	if images[0].Unique != 0 {
		t.Errorf("%s has %d unique bytes, want none: the other image has all of them", images[0].Name, images[0].Unique)
	}
	for _, i := range images[1:] { // the same image under two names
		if i.Unique != 30_000 || i.Blobs < 30_000+int64(len(gzipped(upperTar))) || i.Blobs > 90_000 {
			t.Errorf("%s has %d unique bytes, %d bytes of blobs, want 30,000 unique bytes", i.Name, i.Unique, i.Blobs)
		}
	}
	found, err := h.client.Inspect(t.Context(), "b:1")
	if err != nil || len(found) != 1 {
		t.Fatalf("inspect b:1: %+v, %v, want one image", found, err)
	}
	if i := found[0]; len(i.Layers) != 2 || i.Layers[1].DiffID != digest.FromBytes(upperTar).String() ||
		i.Layers[1].Entries != 3 ||
		i.Layers[0].Bytes != int64(len(lowerTar)) || i.Files != 4 || i.Chunks == 0 || i.Packs == 0 || i.Units == 0 ||
		i.IndexSize == 0 || i.IndexWire == 0 {
		t.Errorf("inspect shows %+v, want two layers, 4 files, and sizes above zero", i)
	}
}
