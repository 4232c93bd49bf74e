package direct

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/registries/push"
	"lighter/store/attachment"
	client "lighter/store/registry"
	"lighter/test/testkit/registrytest"
)

// An index counts nothing if an unknown key has signed it, or if it is another image's: one whose
// config borrows the diffIDs of this one, for example. Nor does one whose blobs are not those of
// the image, even if its key is known.
func TestAttachedRefused(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, subject := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	refuse := func(what, want string, im attachment.Image, ref string) {
		t.Helper()
		m := believing(t, r, t.TempDir(), key)
		answer, err := m.Answerer(Formats()...).Answer(t.Context(), pulled(im, ref))
		if !errors.Is(err, chunk.ErrNotFound) || answer != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: answer %+v, %v; want %q", what, answer, err, want)
		}
		if left, err := os.ReadDir(m.kept.dir); err != nil || len(left) != 1 {
			t.Errorf("%s: files %v, %v; want the key only", what, left, err)
		}
	}
	im := attachTo(t, ref, signer(2), attachment.Place{})
	refuse("another key", "no known key has signed it", im, ref)

	// The attacker's image has another manifest, and an artifact that has the victim's envelope.
	attachTo(t, ref, key, attachment.Place{})
	found, _, err := attachment.Find(t.Context(), im.From, subject.Digest, im.Chain(), nil,
		attachment.Trust{Keys: []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	attacker, manifest := r.Push(t, plainImage(t, 1, 3), "team/image:attacker")
	artifact, err := im.From.Manifest(t.Context(), found[0].Artifact.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	to, err := client.FindDestination(t.Context(), attacker, false)
	if err != nil {
		t.Fatal(err)
	}
	forged := []byte(strings.ReplaceAll(string(artifact.Bytes), subject.Digest.String(), manifest.Digest.String()))
	d := push.Bytes(v1.MediaTypeImageManifest, forged).Descriptor
	if err := to.Manifest(t.Context(), d, forged); err != nil {
		t.Fatal(err)
	}
	others, err := attachment.Images(t.Context(), attacker, "", false)
	if err != nil {
		t.Fatal(err)
	}
	refuse("the index of another image", "is the index of manifest "+subject.Digest.String(), others[0], attacker)

	// A known key has signed contents whose tables are in the wrong order.
	wrong := *found[0].Contents
	wrong.Manifest, wrong.Chain = manifest.Digest, others[0].Chain()
	attachContents(t, to, manifest, wrong, key)
	refuse("tables of other layers", "the table of layer 2", others[0], attacker)
}

// An index whose blobs are damaged, although they have their digests, does not count. An older one
// does.
func TestDamagedAttached(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, subject := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	right, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(right) != 1 {
		t.Fatal(right, err)
	}
	index, err := im.From.Blob(t.Context(), right[0].Contents.Index, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	index[len(index)/2] ^= 0xff
	to, err := client.FindDestination(t.Context(), ref, false)
	if err != nil {
		t.Fatal(err)
	}
	blob := func(d v1.Descriptor, b []byte) v1.Descriptor {
		t.Helper()
		one := push.Bytes(d.MediaType, b)
		if err := to.Blob(t.Context(), one.Descriptor, one.Open); err != nil {
			t.Fatal(err)
		}
		return one.Descriptor
	}
	damaged := *right[0].Contents
	damaged.Version++
	damaged.Index = blob(damaged.Index, index)
	attachContents(t, to, subject, damaged, key)
	unsorted := *right[0].Contents
	unsorted.Version += 2
	unsorted.Locations = blob(unsorted.Locations, []byte("no zstd, but long enough"))
	attachContents(t, to, subject, unsorted, key)
	m := believing(t, r, t.TempDir(), key)
	answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if err != nil || answer.Image.Statement.Tree != right[0].Contents.Tree {
		t.Errorf("answer %+v, %v; want the oldest index", answer, err)
	}
}

// An index whose locations lead to bytes that the image does not have is refused before the image
// is answered.
func TestLocationsOutsideOfTheImage(t *testing.T) {
	r, key := registrytest.Start(t, true), signer(1)
	ref, subject := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	found, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(found) != 1 || len(found[0].Contents.Packs) == 0 {
		t.Fatal(found, err)
	}
	right := *found[0].Contents
	m := believing(t, r, t.TempDir(), key)
	if _, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref)); err != nil {
		t.Fatal(err)
	}
	to, err := client.FindDestination(t.Context(), ref, false)
	if err != nil {
		t.Fatal(err)
	}
	blob := func(mediaType string, b []byte) v1.Descriptor {
		t.Helper()
		one := push.Bytes(mediaType, b)
		if err := to.Blob(t.Context(), one.Descriptor, one.Open); err != nil {
			t.Fatal(err)
		}
		return one.Descriptor
	}
	// relocated returns contents whose first extent is in another unit.
	relocated := func(first func(u chunk.Unit) chunk.Unit) attached.Contents {
		t.Helper()
		b := index.NewLocations(right.Tree)
		locations := openLocations(t, m.kept.path(right.Tree, "locations"), right.Tree)
		err := locations.Each(func(i int64, u chunk.Unit) error {
			if i == 0 {
				u = first(u)
			}
			b.Add(u)
			return nil
		})
		for _, s := range locations.Startups() {
			b.Startup(s)
		}
		var zipped bytes.Buffer
		z := compress.IndexEncoder(&zipped, 1<<20)
		_, writeErr := z.Write(b.Encode())
		if err := errors.Join(err, writeErr, z.Close()); err != nil {
			t.Fatal(err)
		}
		c := right
		c.Locations = blob(c.Locations.MediaType, zipped.Bytes())
		return c
	}
	packless := right
	packless.Packs = nil
	for what, c := range map[string]struct {
		contents attached.Contents
		want     string
	}{
		"another pack": {relocated(func(chunk.Unit) chunk.Unit { return chunk.Unit{Pack: chunk.Sum([]byte("other"))} }),
			"which the image does not have"},
		"no pack": {relocated(func(chunk.Unit) chunk.Unit { return chunk.Unit{} }), "which the image does not have"},
		"another unit": {relocated(func(u chunk.Unit) chunk.Unit { u.N += 1000; return u }),
			"which the image does not have"},
		"other startup packs": {packless, "which the image does not have"},
	} {
		if _, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil); err != nil {
			t.Fatal(err)
		}
		attachContents(t, to, subject, c.contents, key)
		m := believing(t, r, t.TempDir(), key)
		_, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
		if !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	resized := right.Packs[0]
	resized.Units = append([]uint32{1}, resized.Units...)
	startups := []index.Startup{{Pack: chunk.Sum(nil), Units: resized.Units}}
	if err := checkStartups(startups, []attached.Pack{resized}); err == nil {
		t.Error("a startup pack that the artifact does not have was accepted")
	}
	if startups[0].Pack, err = resized.ID(); err != nil {
		t.Fatal(err)
	}
	if err := checkStartups(startups, []attached.Pack{resized}); err != nil {
		t.Error(err)
	}
	if err := checkStartups(startups, right.Packs); err == nil {
		t.Error("a startup pack with other units was accepted")
	}
}

// openLocations opens the locations in a file until the test ends.
func openLocations(t *testing.T, path string, tree chunk.ID) *index.Locations {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	locations, err := index.OpenLocations(file, info.Size(), tree, -1)
	if err != nil {
		t.Fatal(err)
	}
	return locations
}

// attachContents signs contents, and attaches them to an image.
func attachContents(t *testing.T, to *client.Destination, subject v1.Descriptor, c attached.Contents,
	key ed25519.PrivateKey) {
	t.Helper()
	envelope, err := attached.Seal(&c, []ed25519.PrivateKey{key})
	if err != nil {
		t.Fatal(err)
	}
	blob := push.Bytes(attached.MediaTypeEnvelope, envelope)
	if err := to.Blob(t.Context(), blob.Descriptor, blob.Open); err != nil {
		t.Fatal(err)
	}
	b, err := attached.Manifest(&c, envelope, subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Manifest(t.Context(), push.Bytes(v1.MediaTypeImageManifest, b).Descriptor, b); err != nil {
		t.Fatal(err)
	}
}

// An artifact that a list names and the registry has lost, and one that is no index, do not hide
// the right one. A failing list does not keep other formats from being looked for.
func TestOddLists(t *testing.T) {
	r, key := registrytest.Start(t, false), signer(1)
	ref, manifest := r.Push(t, plainImage(t, 1, 2), "team/image:1")
	im := attachTo(t, ref, key, attachment.Place{})
	lost := attachTo(t, ref, signer(2), attachment.Place{})
	all, _, err := attachment.List(t.Context(), lost, attachment.Place{})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	other := all[slices.IndexFunc(all, func(f attachment.Found) bool { return !f.By.Equal(key.Public()) })]
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		isLost := strings.HasSuffix(req.URL.Path, other.Artifact.Digest.String())
		if isLost {
			http.NotFound(w, req)
		}
		return isLost
	})
	_, err = believing(t, r, t.TempDir(), key).Answerer("attached").Answer(t.Context(), pulled(im, ref))
	if err != nil {
		t.Errorf("with a lost artifact in the list: %v", err)
	}
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		isList := strings.Contains(req.URL.Path, "/sha256-"+manifest.Digest.Encoded())
		if isList {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return isList
	})
	_, err = believing(t, r, t.TempDir(), key).Answerer(Formats()...).Answer(t.Context(), pulled(im, ref))
	if err == nil || errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), "500") {
		t.Errorf("with a list that fails: %v, want that the registry has failed", err)
	}
}

// Trouble of this machine's disk is no property of the artifact.
func TestTroubleOfTheDisk(t *testing.T) {
	dir := t.TempDir()
	id := chunk.Sum([]byte("x"))
	n := &tree.Node{Mode: tree.ModeRegular | 0o755, Nlink: 1, Size: 1}
	n.Content.Extents = []tree.Extent{{ID: id, Length: 1}}
	root := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "x", Node: n}})
	file, err := os.Create(filepath.Join(dir, "index"))
	if err != nil {
		t.Fatal(err)
	}
	made, err := index.MakeAt(&tree.Tree{Root: root}, file)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	// The blob's file cannot be opened: as with too many open files, or EIO.
	c := &attached.Contents{Tree: made.ID(), Tables: make([]v1.Descriptor, 1)}
	err = finish(t.Context(), c, &read{layers: make([]v1.Descriptor, 1)}, dir)
	if err == nil || errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("error %v, want one of the disk", err)
	}
}

// An index whose making takes too long is not refused: it is no property of the artifact.
func TestFinishEndsWithItsContext(t *testing.T) {
	_, im, m, tree := startAttached(t)
	all, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	c, dir := all[0].Contents, m.kept.path(tree, "")
	for i, d := range c.Tables {
		b, err := im.From.Blob(t.Context(), d, 1<<20)
		if err == nil {
			err = os.WriteFile(blobPath(dir, i), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for what, do := range map[string]func(context.Context) error{
		"all":       func(ctx context.Context) error { return finish(ctx, c, &read{layers: im.Layers}, dir) },
		"locations": func(ctx context.Context) error { return checkLocations(ctx, c, -1, nil, dir) },
	} {
		if err := do(ended); !errors.Is(err, context.Canceled) || errors.As(err, new(*chunk.InvalidError)) {
			t.Errorf("%s: error %v, want that the context has ended", what, err)
		}
	}
	if err := finish(t.Context(), c, &read{layers: im.Layers}, dir); err != nil {
		t.Error(err)
	}
}
