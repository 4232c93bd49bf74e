package direct

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/store"
	"lighter/test/testkit/cachetest"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/tarball"
)

// storeSeen stores what waits to be stored, and returns the number of chunks. Each has the bytes
// that its ID says.
func storeSeen(t *testing.T, m *Images, cache store.Cache) (n int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.StoreSeen(ctx, func(ref chunk.Ref, plain []byte) {
			if ref.ID != chunk.Sum(plain) || int(ref.Length) != len(plain) {
				t.Errorf("chunk %s of %d bytes is stored with other bytes", ref.ID.Short(), ref.Length)
			}
			n++
			cache.Put(ref, plain)
		})
	}()
	eventually.Holds(t, "chunks to be stored", func() bool { return len(m.batches) == 0 })
	stop()
	<-ended
	return n
}

// readChunks reads all chunks of a tree, as its device does, and returns how many are in a layer.
func readChunks(t *testing.T, m *Images, cache store.Cache, tree chunk.ID, in digest.Digest) (n int) {
	t.Helper()
	fetcher := store.NewFetcher(m.Source(noHubs{}), cache)
	defer fetcher.Wait()
	share := fetcher.Share()
	for _, ref := range refsOf(t, m, tree) {
		plain := make([]byte, ref.Length)
		if !share.Cached(ref, 0, plain) {
			if err := share.Read(t.Context(), ref, 0, plain, nil); err != nil {
				t.Fatal(err)
			}
		}
		if !layer.IsDerived(ref.ID) && chunk.Sum(plain) != ref.ID {
			t.Errorf("chunk %s has other bytes", ref.ID.Short())
		}
		if ref.Unit.Pack.String() == in.Encoded() {
			n++
		}
	}
	return n
}

// noisy returns a layer with a file of some bytes that do not compress.
func noisy(name string, seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return tarball.Of(tarball.File(name, string(b)))
}

// A layer without a zTOC is fetched once: by the pull. Neither readers nor the verification of the
// image's other layers fetch it again, also after a restart.
func TestWholeLayersAreFetchedOnce(t *testing.T) {
	f := startFake(t)
	const size = 3*chunk.MaxLength + 1000
	p := f.push(t, "a/image", small, nil, layerOf("large"), noisy("noise", 1, size))
	other := f.push(t, "a/other", small, nil, layerOf("large"), noisy("noise", 2, size))
	root, cache := t.TempDir(), cachetest.NewMemory()
	for _, one := range []struct {
		pushed
		verified int // images of which layers are still to be verified
	}{{p, 1}, {other, 0}} {
		m := f.images(t, root, []string{"**"}, nil)
		tree, err := f.ask(t, m, one.pushed)
		if err != nil {
			t.Fatal(err)
		}
		whole := one.layers[1]
		stored := storeSeen(t, m, cache)
		if n := readChunks(t, m, cache, tree, whole.Digest); n < 3 || stored != n {
			t.Errorf("%s: %d chunks were stored, the layer has %d", one.repository, stored, n)
		}
		m = f.images(t, root, []string{"**"}, nil)
		if n := verifyAll(t, m); n != one.verified {
			t.Errorf("%s: %d images were verified, want %d", one.repository, n, one.verified)
		}
		if s := m.Status(); s.Unverified != 0 || s.Wrong != 0 || s.Failed != "" {
			t.Errorf("%s: status %+v", one.repository, s)
		}
		if n := storeSeen(t, m, cache); n != 0 {
			t.Errorf("%s: the verification has stored %d chunks", one.repository, n)
		}
		// The pull has also asked for the last byte of the largest layer, to see whether it can.
		if n := f.received(whole.Digest); n != int(whole.Size)+1 {
			t.Errorf("%s: %d bytes of the layer were fetched, it has %d", one.repository, n, whole.Size)
		}
	}
}

// What the node reads to verify an image that waits for it is not stored.
func TestVerificationStoresNothing(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", small, nil, layerOf("large"), layerOf("small"))
	m, cache := f.images(t, t.TempDir(), nil, []string{"a/*"}), cachetest.NewMemory()
	if _, err := f.ask(t, m, p); err == nil {
		t.Fatal("it was answered before it was verified")
	}
	verifyAll(t, m)
	if n := storeSeen(t, m, cache); n != 0 {
		t.Errorf("%d chunks were stored", n)
	}
	if _, err := f.ask(t, m, p); err != nil {
		t.Error(err)
	}
	if n := storeSeen(t, m, cache); n == 0 {
		t.Error("the pull has stored no chunk")
	}
}

// If the registry sends another layer, the pull fails. What was seen of that layer is stored under
// its own digests.
func TestAnotherLayerIsSeen(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", small, nil, layerOf("large"), noisy("good", 1, 2*chunk.MaxLength))
	wrong, _, _ := zipped(t, noisy("evil", 2, 2*chunk.MaxLength))
	f.set(func(w http.ResponseWriter, req *http.Request) bool {
		isLayer := strings.HasSuffix(req.URL.Path, p.layers[1].Digest.String()) && req.Header.Get("Range") == ""
		if isLayer {
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(wrong))
		}
		return isLayer
	})
	m, cache := f.images(t, t.TempDir(), []string{"**"}, nil), cachetest.NewMemory()
	if tree, err := f.ask(t, m, p); err == nil {
		t.Fatalf("got tree %s", tree.Short())
	}
	storeSeen(t, m, cache)
	f.set(nil)
	tree, err := f.ask(t, m, p)
	if err != nil {
		t.Fatal(err)
	}
	readChunks(t, m, cache, tree, p.layers[1].Digest)
}

// A pull does not wait for the cache, and a layer that inflates to gigabytes does not fill it.
func TestSeenIsBounded(t *testing.T) {
	to := make(chan batch, 2)
	s := seen{to: to, left: 5 * chunk.MaxLength}
	plain := bytes.Repeat([]byte{1}, chunk.MaxLength)
	for range 4 {
		s.add(chunk.Sum(plain), plain)
	}
	s.flush()
	if len(to) != 2 {
		t.Errorf("%d batches wait, want 2", len(to))
	}
	all := map[chunk.ID][]byte{}
	put := func(ref chunk.Ref, plain []byte) { all[ref.ID] = bytes.Clone(plain) }
	for len(to) > 0 {
		b := <-to
		b.store(put)
	}
	one, other := []byte("one"), []byte("other")
	for _, b := range [][]byte{one, plain, other, plain[1:]} { // the last one is too much
		s.add(chunk.Sum(b), b)
	}
	s.flush()
	for len(to) > 0 {
		b := <-to
		b.store(put)
	}
	for _, b := range [][]byte{one, plain, other} {
		if id := chunk.Sum(b); !slices.Equal(all[id], b) {
			t.Errorf("chunk of %d bytes is stored with %d bytes", len(b), len(all[id]))
		}
	}
	if len(all) != 3 {
		t.Errorf("%d chunks are stored, want 3", len(all))
	}
}
