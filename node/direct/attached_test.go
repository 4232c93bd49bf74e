package direct

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/stargz"
	"lighter/format/trace"
	"lighter/node/resolver"
	"lighter/registries"
	"lighter/store/attachment"
	"lighter/test/testkit/cachetest"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// signer returns a key that is always the same.
func signer(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(slices.Repeat([]byte{seed}, ed25519.SeedSize))
}

// plainImage makes a layout of an image of a layer for each seed, with a file that does not
// compress.
func plainImage(t *testing.T, seeds ...byte) string {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join(dir, "empty")
	err := errors.Join(os.MkdirAll(filepath.Join(from, "blobs/sha256"), 0o700),
		layout.Write(from, v1.Manifest{}, v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
			RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}))
	for _, seed := range seeds {
		next := filepath.Join(dir, string('a'+rune(seed)))
		b := make([]byte, 1<<20)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
		err = errors.Join(err, layout.Extend(from, next, func(l *layout.Layer) error {
			return l.File(string('a'+rune(seed)), b)
		}))
		from = next
	}
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// attachTo attaches an index with a startup pack to an image.
func attachTo(t *testing.T, ref string, key ed25519.PrivateKey, place attachment.Place) attachment.Image {
	t.Helper()
	all, err := attachment.Images(t.Context(), ref, "linux/amd64", false)
	if err != nil {
		t.Fatal(err)
	}
	recording := trace.Recording{Starts: 1, Entries: []trace.Entry{{Path: "/b", Length: 300_000}}}
	_, err = attachment.Attach(t.Context(), all[0], place, attachment.Options{Keys: []ed25519.PrivateKey{key},
		Recordings: []trace.Recording{recording}, Startup: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// believing opens images that believe the attached indexes of a key, and no tables.
func believing(t *testing.T, r *registrytest.Registry, root string, key ed25519.PrivateKey, chains ...string) *Images {
	t.Helper()
	return believingAll(t, []*registrytest.Registry{r}, 0, root, key, chains...)
}

// believingAll is believing with several registries, of which each takes a number of connections
// at a time; 0: any number.
func believingAll(t *testing.T, all []*registrytest.Registry, connections int64, root string, key ed25519.PrivateKey,
	chains ...string) *Images {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var tables []registries.Registry
	for _, r := range all {
		tables = append(tables, registries.Registry{Host: r.Host, Private: true, PlainHTTP: true,
			Connections: connections})
	}
	known, err := registries.New(tables, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(Config{Root: root, Keys: []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}, Chains: chains,
		Registries: known, Leftovers: &durable.Leftovers{Log: log}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), known.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// startAttached answers an image with an attached index. It returns the registry, the image, and
// the tree that is kept.
func startAttached(t *testing.T) (r *registrytest.Registry, im attachment.Image, m *Images, tree chunk.ID) {
	t.Helper()
	key := signer(1)
	r = registrytest.Start(t, true)
	ref, _ := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im = attachTo(t, ref, key, attachment.Place{})
	m = believing(t, r, t.TempDir(), key)
	answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if err != nil {
		t.Fatal(err)
	}
	return r, im, m, answer.Image.Statement.Tree
}

// pulled is the pull of an image.
func pulled(im attachment.Image, ref string) resolver.Request {
	manifest := im.Manifest.Digest.String()
	return resolver.Request{Chain: im.Chain(), Manifest: manifest, Pulled: manifest, Reference: ref}
}

// An image with an attached index is answered, also after a restart without it, and from another
// repository by its chain.
func TestAttached(t *testing.T) {
	r, key, root := registrytest.Start(t, true), signer(1), t.TempDir()
	ref, _ := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	for range 2 {
		m := believing(t, r, root, key)
		answer, err := m.Answerer(Formats()...).Answer(t.Context(), pulled(im, ref))
		if err != nil || answer.Source != "the attached index in "+r.Host+"/team/image" {
			t.Fatalf("answer %+v, %v", answer, err)
		}
		if err := answer.Image.Statement.Verify(im.Chain(), []ed25519.PublicKey{m.Key()}); err != nil {
			t.Error(err)
		}
		readAll(t, m, answer.Image.Statement.Tree)
		all, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil)
		if err != nil || len(all) > 1 {
			t.Errorf("removed %+v, %v", all, err)
		}
	}
	chains := r.Host + "/indexes"
	attachTo(t, ref, key, attachment.Place{Chains: chains})
	m := believing(t, r, t.TempDir(), key, chains)
	answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, m, answer.Image.Statement.Tree)
}

// twoFormats pushes an image that has tables of contents, and attaches an index to it. It also
// returns the directory of the layout.
func twoFormats(t *testing.T, r *registrytest.Registry, key ed25519.PrivateKey) (
	im attachment.Image, ref, dir string,
) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "lazy")
	if err := layout.Lazy(t.Context(), plainImage(t, 1, 2), dir, stargz.Options{Format: stargz.EStargz}); err != nil {
		t.Fatal(err)
	}
	ref, _ = r.Push(t, dir, "team/image:1")
	return attachTo(t, ref, key, attachment.Place{}), ref, dir
}

// An image that has an attached index and tables of contents is answered from the first of them in
// the configured order.
func TestOrderOfFormats(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	im, ref, _ := twoFormats(t, r, key)
	const index, tables = "the attached index", "the tables of contents"
	for _, c := range []struct {
		order  []string
		word   string
		source string
		packs  int // startup packs that the tree has
	}{
		{Formats(), "attached", index, 1},
		{[]string{"attached", "tables"}, "attached", index, 1},
		{[]string{"tables", "attached"}, "tables", tables, 0},
		{[]string{"soci", "tables", "attached"}, "tables", tables, 0},
		{[]string{"soci", "attached", "tables"}, "attached", index, 1},
	} {
		m := believing(t, r, t.TempDir(), key)
		m.config.Tables = []string{"**"}
		answer, err := m.Answerer(c.order...).Answer(t.Context(), pulled(im, ref))
		if err != nil {
			t.Fatalf("%q: %v", c.order, err)
		}
		word, _ := m.Made(answer.Image.Statement.Tree)
		kept := m.kept.imageOf(answer.Image.Statement.Tree)
		if want := c.source + " in " + r.Host + "/team/image"; answer.Source != want || word != c.word ||
			len(kept.Packs) != c.packs {
			t.Errorf("%q: the answer is from %s (%q), with %d startup packs; want %s (%q), with %d", c.order,
				answer.Source, word, len(kept.Packs), want, c.word, c.packs)
		}
	}
}

// The tree of the lower layers of such an image is made when an image without an index has other
// layers above them: the layers are read as a whole. It needs no key.
func TestLowerLayersOfAttached(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	dir := plainImage(t, 1, 2)
	ref, _ := r.Push(t, dir, "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	root := t.TempDir()
	m := believing(t, r, root, key)
	a := m.Answerer(Formats()...)
	if _, err := a.Answer(t.Context(), pulled(im, ref)); err != nil {
		t.Fatal(err)
	}
	lower := identity.ChainID(im.DiffIDs[:1]).String()
	got, err := a.Tree(t.Context(), lower)
	if err != nil || got.Chain != lower {
		t.Fatalf("the lower layer: %+v, %v", got, err)
	}
	cache := cachetest.NewMemory()
	storeSeen(t, m, cache)
	for _, ref := range refsOf(t, m, got.Tree) {
		if !cache.Has(ref.ID) {
			t.Errorf("chunk %s of the lower layer was seen and is not stored", ref.ID.Short())
		}
	}
	r.Asked("")
	if again, err := a.Tree(t.Context(), lower); err != nil || again.Tree != got.Tree {
		t.Errorf("again: %+v, %v, want the same tree", again, err)
	}
	if asked := r.Asked("/blobs/"); len(asked) > 0 {
		t.Errorf("the lower layer was read again: %q", asked)
	}
}

// An image that was kept with an index of a key that is not believed any more is not answered.
func TestRemovedKey(t *testing.T) {
	r, key, root := registrytest.Start(t, true), signer(1), t.TempDir()
	ref, _ := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	if _, err := believing(t, r, root, key).Answerer(Formats()...).Answer(t.Context(), pulled(im, ref)); err != nil {
		t.Fatal(err)
	}
	a := believing(t, r, root, signer(2)).Answerer(Formats()...)
	if answer, err := a.Answer(t.Context(), pulled(im, ref)); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("answer %+v, %v, want none", answer, err)
	}
	if s, err := a.Tree(t.Context(), im.Chain()); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("statement %+v, %v, want none", s, err)
	}
}

// Lower layers are read as a whole for one image at a time.
func TestLowerLayersAreReadOneAfterTheOther(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	a := believing(t, r, t.TempDir(), key).Answerer(Formats()...)
	var lower []string
	layers := map[string]bool{}
	for i, seeds := range [][]byte{{1, 2}, {3, 2}, {4, 2}} {
		ref, _ := r.Push(t, plainImage(t, seeds...), fmt.Sprintf("team/image%d:1", i))
		im := attachTo(t, ref, key, attachment.Place{})
		if _, err := a.Answer(t.Context(), pulled(im, ref)); err != nil {
			t.Fatal(err)
		}
		lower = append(lower, identity.ChainID(im.DiffIDs[:1]).String())
		layers[im.Layers[0].Digest.String()] = true
	}
	var reading, most atomic.Int32
	r.Spoil(func(_ http.ResponseWriter, req *http.Request) bool {
		if layers[path.Base(req.URL.Path)] && req.Header.Get("Range") == "" {
			most.Store(max(most.Load(), reading.Add(1)))
			time.Sleep(50 * time.Millisecond)
			reading.Add(-1)
		}
		return false
	})
	var group errgroup.Group
	for _, chain := range lower {
		group.Go(func() error { _, err := a.Tree(t.Context(), chain); return err })
	}
	if err := group.Wait(); err != nil || most.Load() != 1 {
		t.Errorf("%d layers are read at a time, %v, want 1", most.Load(), err)
	}
}
