package attachment_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/trace"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/store/registry"
	"lighter/store/repository"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// keyOf returns a key that is always the same.
func keyOf(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(slices.Repeat([]byte{seed}, ed25519.SeedSize))
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// noise returns bytes that do not compress, always the same for a seed.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return b
}

// image makes a layout of an image of two layers.
func image(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	empty, lower, upper := filepath.Join(dir, "empty"), filepath.Join(dir, "lower"), filepath.Join(dir, "upper")
	err := errors.Join(os.MkdirAll(filepath.Join(empty, "blobs/sha256"), 0o700),
		layout.Write(empty, ocispec.Manifest{}, ocispec.Image{Platform: ocispec.Platform{OS: "linux",
			Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}))
	err = errors.Join(err, layout.Extend(empty, lower, func(l *layout.Layer) error {
		return errors.Join(l.File("lib", noise(1, 3<<20)), l.File("program", noise(2, 200_000)))
	}), layout.Extend(lower, upper, func(l *layout.Layer) error {
		return errors.Join(l.File("data", noise(3, 1<<20)), l.File("small", []byte("small")))
	}))
	if err != nil {
		t.Fatal(err)
	}
	return upper
}

// find finds the image of a reference.
func find(t *testing.T, ref string) attachment.Image {
	t.Helper()
	all, err := attachment.Images(t.Context(), ref, "linux/amd64", false)
	if err != nil || len(all) != 1 {
		t.Fatalf("images %+v, %v, want one", all, err)
	}
	return all[0]
}

func attach(
	t *testing.T, im attachment.Image, in attachment.Place, o attachment.Options, want string,
) attachment.Result {
	t.Helper()
	o.Dir, o.Startup, o.Jobs = t.TempDir(), 1<<20, 2
	r, err := attachment.Attach(t.Context(), im, in, o)
	if err != nil || r.State != want {
		t.Fatalf("attach: %+v, %v, want that it is %s", r, err, want)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("temporary files %v are left, %v", left, err)
	}
	return r
}

// recorded is a start that read a program and a part of a library.
func recorded() []trace.Recording {
	return []trace.Recording{{Starts: 1, Entries: []trace.Entry{{Path: "/program", Length: 200_000},
		{Path: "/lib", Offset: 1 << 20, Length: 4096}}}}
}

// An index is attached once. With recordings, only its startup packs change. It is found with the
// referrers API and without it, and not any more when it was removed.
func TestAttach(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		r := registrytest.Start(t, referrers)
		ref, manifest := r.Push(t, image(t), "team/image:1")
		im, key := find(t, ref), keyOf(1)
		o := attachment.Options{Keys: []ed25519.PrivateKey{key}}
		first := attach(t, im, attachment.Place{}, o, "attached")
		r.Asked("")
		if again := attach(t, im, attachment.Place{}, o, "unchanged"); again.Artifact != first.Artifact {
			t.Errorf("again: %+v, want %+v", again, first)
		}
		if pushed := r.Asked("PUT "); len(pushed) > 0 {
			t.Errorf("an unchanged index was pushed: %q", pushed)
		}
		o.Recordings = recorded()
		second := attach(t, im, attachment.Place{}, o, "replaced")
		for _, d := range im.Layers {
			if read := r.Asked("GET /v2/team/image/blobs/" + d.Digest.String()); len(read) > 3 {
				t.Errorf("a layer was read %d times, want a few ranges", len(read))
			}
		}
		if second.Version != 2 || second.Startup == 0 || second.Tree != first.Tree || second.Left != "" {
			t.Errorf("the second version is %+v", second)
		}
		attach(t, im, attachment.Place{}, o, "unchanged")
		all, refused, err := attachment.List(t.Context(), im, attachment.Place{})
		if err != nil || refused != nil || len(all) != 1 || all[0].Contents.Manifest != manifest.Digest ||
			!all[0].By.Equal(publicOf(key)) {
			t.Fatalf("referrers %t: attached are %+v, %v, %v, want one", referrers, all, refused, err)
		}
		check(t, im, all[0])
		removed, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil)
		if err != nil || len(removed) != 1 {
			t.Errorf("removed %+v, %v, want one", removed, err)
		}
		if all, _, err := attachment.List(t.Context(), im, attachment.Place{}); err != nil || len(all) > 0 {
			t.Errorf("after the removal, attached are %+v, %v", all, err)
		}
	}
}

// With several keys, an index is that of all of them: one that lacks a signature is signed again,
// with its startup packs.
func TestAttachWithSeveralKeys(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	first, second := keyOf(1), keyOf(2)
	var packs []attached.Pack
	for i, c := range []struct {
		keys []ed25519.PrivateKey
		want string
	}{
		{[]ed25519.PrivateKey{first}, "attached"},
		{[]ed25519.PrivateKey{first, second}, "replaced"},
		{[]ed25519.PrivateKey{first, second}, "unchanged"},
		{[]ed25519.PrivateKey{second}, "unchanged"},
	} {
		o := attachment.Options{Keys: c.keys}
		if i == 0 {
			o.Recordings = recorded()
		}
		attach(t, im, attachment.Place{}, o, c.want)
		all, refused, err := attachment.List(t.Context(), im, attachment.Place{})
		if err != nil || refused != nil || len(all) != 1 {
			t.Fatalf("attached are %+v, %v, %v, want one", all, refused, err)
		}
		if _, signed := attached.HaveSigned(all[0].Signers, c.keys); !signed {
			t.Errorf("it is signed by %d keys, want all of %d", len(all[0].Signers), len(c.keys))
		}
		if i == 0 {
			packs = all[0].Contents.Packs
		}
		if now := all[0].Contents.Packs; len(packs) == 0 || !reflect.DeepEqual(now, packs) {
			t.Errorf("the startup packs are %v, and were %v", now, packs)
		}
		check(t, im, all[0])
	}
}

// check reads all chunks of an attached index where its locations say.
func check(t *testing.T, im attachment.Image, f attachment.Found) {
	t.Helper()
	plain := func(d ocispec.Descriptor, zipped bool) []byte {
		var b []byte
		err := f.In.Whole(t.Context(), d, func(a store.Answer) (err error) {
			r := a.Body
			if zipped {
				z, err := compress.Reader(r)
				if err != nil {
					return err
				}
				defer z.Close()
				r = z
			}
			b, err = io.ReadAll(r)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	err = attached.ReadIndex(file, bytes.NewReader(plain(f.Contents.Index, false)), f.Contents.Tree)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(file, f.Contents.Tree, index.NewPages(16))
	if err != nil {
		t.Fatal(err)
	}
	text := plain(f.Contents.Locations, true)
	locations, err := index.OpenLocations(bytes.NewReader(text), int64(len(text)), f.Contents.Tree, m.Extents)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]*layer.Table{}
	for i, d := range f.Contents.Tables {
		made, err := attached.ReadTable(bytes.NewReader(plain(d, false)), m)
		if err != nil {
			t.Fatal(err)
		}
		if tables[im.Layers[i].Digest.Encoded()], err = made.Open(); err != nil {
			t.Fatal(err)
		}
	}
	inPacks := 0
	for i := range m.Extents {
		x, err := m.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		u, err := locations.Unit(i)
		if err != nil {
			t.Fatal(err)
		}
		table := tables[u.Pack.String()]
		if table == nil {
			inPacks++
			continue
		}
		unit, err := table.Unit(u.N)
		if err != nil {
			t.Fatal(err)
		}
		blob := digest.NewDigestFromEncoded(digest.SHA256, u.Pack.String())
		d := im.Layers[slices.IndexFunc(im.Layers, func(d ocispec.Descriptor) bool { return d.Digest == blob })]
		err = im.From.Range(t.Context(), d, unit.Offset, unit.Stored, func(a store.Answer) error {
			b, err := io.ReadAll(a.Body)
			if err != nil {
				return err
			}
			batch, err := unit.Decode(b)
			if err == nil {
				_, err = batch.Lookup(x.ID)
			}
			return err
		})
		if err != nil {
			t.Errorf("extent %d: %v", i, err)
		}
	}
	if inPacks == 0 || len(locations.Startups()) == 0 {
		t.Errorf("%d chunks are in startup packs %+v, want some", inPacks, locations.Startups())
	}
}

// A repository can have the indexes of images in others, under a tag for the chain.
func TestChains(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := r.Push(t, image(t), "team/image:1")
	im, key := find(t, ref), keyOf(1)
	in := attachment.Place{Chains: r.Host + "/indexes"}
	o := attachment.Options{Keys: []ed25519.PrivateKey{key}}
	attach(t, im, in, o, "attached")
	attach(t, im, in, o, "unchanged")
	o.Recordings = recorded()
	if second := attach(t, im, in, o, "replaced"); second.Version != 2 {
		t.Errorf("the second version is %+v", second)
	}
	chains, err := registry.Repository(t.Context(), in.Chains, false)
	if err != nil {
		t.Fatal(err)
	}
	all, refused, err := attachment.Find(t.Context(), im.From, im.Manifest.Digest, im.Chain(),
		[]*repository.Repository{chains}, attachment.Trust{Keys: []ed25519.PublicKey{publicOf(key)}})
	if err != nil || refused != nil || len(all) != 1 || all[0].Contents.Version != 2 {
		t.Errorf("found %+v, %v, %v, want the second version", all, refused, err)
	}
	if all, _, err := attachment.List(t.Context(), im, attachment.Place{}); err != nil || len(all) > 0 {
		t.Errorf("the image's own repository has %+v, %v", all, err)
	}
	if all, refused, err := attachment.List(t.Context(), im, in); err != nil || refused != nil || len(all) != 1 {
		t.Errorf("under the chain's tag are %+v, %v, %v, want one", all, refused, err)
	}
	another := []ed25519.PublicKey{publicOf(keyOf(2))}
	if removed, err := attachment.RemoveAll(t.Context(), im, in, another); err != nil || len(removed) > 0 {
		t.Errorf("removed those of another key: %+v, %v", removed, err)
	}
	if removed, err := attachment.RemoveAll(t.Context(), im, in, nil); err != nil || len(removed) != 1 {
		t.Errorf("removed %+v, %v, want one", removed, err)
	}
	if all, refused, err := attachment.List(t.Context(), im, in); err != nil || refused != nil || len(all) > 0 {
		t.Errorf("after the removal, under the chain's tag are %+v, %v, %v", all, refused, err)
	}
}

// A tag is read once: if it moves meanwhile, the index is that of the image that it named.
func TestMovedTag(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, first := r.Push(t, image(t), "team/image:1")
	other := filepath.Join(t.TempDir(), "other")
	err := layout.Extend(image(t), other, func(l *layout.Layer) error { return l.File("more", noise(4, 100)) })
	if err != nil {
		t.Fatal(err)
	}
	var move sync.Once
	r.Spoil(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/manifests/"+first.Digest.String()) { // the tag was read
			move.Do(func() { r.Push(t, other, "team/image:1") })
		}
		return false
	})
	im := find(t, ref)
	if im.Manifest.Digest != first.Digest || len(im.Layers) != 2 {
		t.Fatalf("image %+v, want %s", im, first.Digest)
	}
	attach(t, im, attachment.Place{}, attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}}, "attached")
	moved := find(t, ref)
	if all, _, err := attachment.List(t.Context(), moved, attachment.Place{}); err != nil || len(all) > 0 ||
		len(moved.Layers) != 3 {
		t.Errorf("the image that the tag names now has %d layers and the indexes %+v, %v; want none", len(moved.Layers),
			all, err)
	}
}

// If the registry changes a byte of a layer, or a layer is not that of the config, nothing is
// pushed.
func TestAttachRefuses(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	o := attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}}
	refuse := func(what, want string, im attachment.Image) {
		t.Helper()
		r.Asked("")
		o.Dir = t.TempDir()
		_, err := attachment.Attach(context.Background(), im, attachment.Place{}, o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		if pushed := r.Asked("PUT "); len(pushed) > 0 {
			t.Errorf("%s: pushed %q", what, pushed)
		}
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: temporary files %v are left, %v", what, left, err)
		}
	}
	wrong := im
	wrong.DiffIDs = slices.Clone(im.DiffIDs)
	wrong.DiffIDs[1] = digest.FromString("x")
	refuse("another diffID", "the config says", wrong)
	wrong.DiffIDs = wrong.DiffIDs[:1]
	refuse("a diffID less", "1 diffIDs", wrong)
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != "GET" || !strings.HasSuffix(req.URL.Path, im.Layers[0].Digest.String()) {
			return false
		}
		_, _ = w.Write(bytes.Repeat([]byte{0}, int(im.Layers[0].Size)))
		return true
	})
	refuse("another blob", im.Layers[0].Digest.String(), im)
	var damaged []byte
	r.Spoil(nil)
	err := im.From.Whole(t.Context(), im.Layers[0], func(a store.Answer) (err error) {
		damaged, err = io.ReadAll(a.Body)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	damaged[len(damaged)/2] ^= 0xff
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != "GET" || !strings.HasSuffix(req.URL.Path, im.Layers[0].Digest.String()) {
			return false
		}
		_, _ = w.Write(damaged)
		return true
	})
	refuse("a damaged blob", "blob "+im.Layers[0].Digest.String()+" is invalid: its digest is ", im)
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != "POST" && req.Method != "PUT" {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	o.Dir = t.TempDir()
	r.Asked("")
	if _, err := attachment.Attach(t.Context(), im, attachment.Place{}, o); err == nil ||
		!strings.Contains(err.Error(), "begin an upload to "+im.From.String()) {
		t.Errorf("a registry that refuses pushes: %v", err)
	}
	if read := r.Asked(im.Layers[0].Digest.String()); len(read) > 0 {
		t.Errorf("a registry that refuses pushes: a layer was read in vain: %q", read)
	}
}

func TestReadRecordings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, trace.EncodeText(recorded()), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := attachment.ReadRecordings(file, file); err != nil || len(all) != 2 || len(all[0].Entries) != 2 {
		t.Errorf("recordings %+v, %v, want two", all, err)
	}
	if err := os.WriteFile(file, []byte("something else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := attachment.ReadRecordings(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file of something else: %v", err)
	}
}
