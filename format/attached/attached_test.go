package attached

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/test/testkit/golden"
)

// keyOf returns a key that is always the same.
func keyOf(seed byte) (ed25519.PrivateKey, ed25519.PublicKey) {
	key := ed25519.NewKeyFromSeed(slices.Repeat([]byte{seed}, ed25519.SeedSize))
	return key, key.Public().(ed25519.PublicKey)
}

func blob(mediaType, text string) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromString(text), Size: int64(len(text))}
}

func sample() *Contents {
	return &Contents{Manifest: digest.FromString("manifest"), Chain: digest.FromString("chain").String(),
		Tree: chunk.Sum([]byte("tree")), Format: index.Format, Version: 3, Index: blob(MediaTypeIndex, "index"),
		Locations: blob(MediaTypeLocations, "locations"),
		Tables:    []v1.Descriptor{blob(MediaTypeTable, "lower"), blob(MediaTypeTable, "upper")},
		Packs:     []Pack{{Blob: blob(MediaTypePack, "a startup pack"), Units: []uint32{4, 6}}}}
}

func seal(t testing.TB, c *Contents, keys ...ed25519.PrivateKey) []byte {
	t.Helper()
	b, err := Seal(c, keys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Contents are what was sealed, if a known key has signed them.
func TestOpen(t *testing.T) {
	first, firstKey := keyOf(1)
	second, secondKey := keyOf(2)
	_, other := keyOf(3)
	b := seal(t, sample(), first, second)
	for _, keys := range [][]ed25519.PublicKey{{firstKey}, {other, secondKey}} {
		got, by, err := Open(b, keys)
		if err != nil || !got.Equal(sample()) || got.Version != 3 || !by.Equal(keys[len(keys)-1]) {
			t.Errorf("contents %+v by %v, %v", got, by, err)
		}
	}
	for _, keys := range [][]ed25519.PublicKey{nil, {other}, {nil}, {firstKey[:31]}} {
		if _, _, err := Open(b, keys); !errors.Is(err, ErrNotSigned) {
			t.Errorf("keys %v: %v, want that no known key has signed", keys, err)
		}
	}
	if got := Signers(b); len(got) != 2 || !got[0].Equal(firstKey) || !got[1].Equal(secondKey) {
		t.Errorf("signers %v, want both", got)
	}
}

// A changed byte anywhere in an envelope leaves it without a signature, or changes nothing.
func TestOpenRefusesChangedBytes(t *testing.T) {
	key, public := keyOf(1)
	b := seal(t, sample(), key)
	for i := range b {
		changed := slices.Clone(b)
		changed[i] ^= 1
		if got, _, err := Open(changed, []ed25519.PublicKey{public}); err == nil && !got.Equal(sample()) {
			t.Fatalf("byte %d: contents %+v", i, got)
		}
	}
}

// Contents that contradict themselves, or exceed the bounds, are neither written nor read.
func TestContentsAreChecked(t *testing.T) {
	key, public := keyOf(1)
	for want, change := range map[string]func(c *Contents){
		"manifest":       func(c *Contents) { c.Manifest = "sha256:1" },
		"chain":          func(c *Contents) { c.Chain = "" },
		"names no tree":  func(c *Contents) { c.Tree = chunk.ID{} },
		"below 0":        func(c *Contents) { c.Version = -1 },
		"format":         func(c *Contents) { c.Format = index.Format + 1 },
		"0 layers":       func(c *Contents) { c.Tables = nil },
		"1001 layers":    func(c *Contents) { c.Tables = slices.Repeat(c.Tables[:1], MaxLayers+1) },
		"0 bytes":        func(c *Contents) { c.Index.Size = 0 },
		"bytes: want a":  func(c *Contents) { c.Locations.Size = maxBlob + 1 },
		"SHA-256":        func(c *Contents) { c.Tables[1].Digest = digest.SHA512.FromString("upper") },
		"startup packs":  func(c *Contents) { c.Packs = slices.Repeat(c.Packs, index.MaxStartups+1) },
		"0 units":        func(c *Contents) { c.Packs[0].Units = nil },
		"unit 1":         func(c *Contents) { c.Packs[0].Units[1] = 0 },
		"the blob has":   func(c *Contents) { c.Packs[0].Units[1] = 11 },
		"unit 0 has 472": func(c *Contents) { c.Packs[0].Units[0] = 4_720_000 },
	} {
		c := sample()
		change(c)
		if _, err := Seal(c, []ed25519.PrivateKey{key}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sealed: %v, want %q", err, want)
		}
		payload, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		e := envelope{PayloadType: payloadType, Payload: payload,
			Signatures: []signature{{Sig: ed25519.Sign(key, preAuth(payload))}}}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(b, []ed25519.PublicKey{public}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("opened: %v, want %q", err, want)
		}
	}
}

// The manifest leads to the envelope and to all blobs, and has a subject if the image is there.
func TestManifest(t *testing.T) {
	key, _ := keyOf(1)
	sealed := seal(t, sample(), key)
	subject := blob(v1.MediaTypeImageManifest, "manifest")
	for _, of := range []v1.Descriptor{subject, {}} {
		b, err := Manifest(sample(), sealed, of)
		if err != nil {
			t.Fatal(err)
		}
		got, about, err := envelopeOf(b)
		if err != nil || got.Digest != digest.FromBytes(sealed) || about != of.Digest {
			t.Errorf("envelope %+v of %q, %v", got, about, err)
		}
		for _, d := range sample().Blobs() {
			if !strings.Contains(string(b), d.Digest.String()) {
				t.Errorf("the manifest lacks blob %s", d.Digest)
			}
		}
	}
}

// Manifests of something else are refused.
func TestEnvelopeOf(t *testing.T) {
	key, _ := keyOf(1)
	b, err := Manifest(sample(), seal(t, sample(), key), v1.Descriptor{})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(m *v1.Manifest){
		"no blobs":        func(m *v1.Manifest) { m.Layers = nil },
		"another type":    func(m *v1.Manifest) { m.ArtifactType = "x" },
		"another blob":    func(m *v1.Manifest) { m.Layers = m.Layers[1:] },
		"a long envelope": func(m *v1.Manifest) { m.Layers[0].Size = MaxEnvelope + 1 },
		"no digest":       func(m *v1.Manifest) { m.Layers[0].Digest = "x" },
		"other data":      func(m *v1.Manifest) { m.Layers[0].Data[0] ^= 1 },
		"shorter data":    func(m *v1.Manifest) { m.Layers[0].Data = m.Layers[0].Data[1:] },
	} {
		var m v1.Manifest
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		changed, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := envelopeOf(changed); err == nil {
			t.Errorf("a manifest with %s was accepted", what)
		}
	}
}

func TestUnit(t *testing.T) {
	p := &sample().Packs[0]
	for n, want := range [][2]int64{{0, 4}, {4, 6}} {
		if offset, length, err := p.Unit(uint32(n)); err != nil || offset != want[0] || length != want[1] {
			t.Errorf("unit %d: %d bytes at %d, %v", n, length, offset, err)
		}
	}
	if _, _, err := p.Unit(2); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("unit 2: %v, want that it is not found", err)
	}
}

// Every later version must read the golden files.
func TestGolden(t *testing.T) {
	key, _ := keyOf(1)
	sealed := seal(t, sample(), key)
	golden.Compare(t, "envelope.golden", string(sealed)+"\n")
	b, err := Manifest(sample(), sealed, blob(v1.MediaTypeImageManifest, "manifest"))
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "manifest.golden", string(b)+"\n")
}

// Whatever a registry sends as an envelope or as an artifact's manifest, nothing counts but what
// the key has signed, and nothing larger than the bounds is read.
func FuzzOpen(f *testing.F) {
	key, public := keyOf(1)
	other, _ := keyOf(2)
	right, subject := sample(), blob(v1.MediaTypeImageManifest, "manifest")
	sealed := seal(f, right, key)
	manifest := func(envelope []byte, of v1.Descriptor) []byte {
		b, err := Manifest(right, envelope, of)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	wrong := sample()
	wrong.Version++
	f.Add(sealed)
	f.Add(seal(f, wrong, other))
	f.Add(manifest(sealed, subject))
	f.Add(manifest(sealed, v1.Descriptor{}))
	f.Add(manifest(seal(f, wrong, other), subject))
	var m v1.Manifest
	if err := json.Unmarshal(manifest(sealed, subject), &m); err != nil {
		f.Fatal(err)
	}
	m.Layers[0].Data = nil
	for _, size := range []int64{m.Layers[0].Size, MaxEnvelope + 1} {
		m.Layers[0].Size = size
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	keys := func([]byte) []ed25519.PublicKey { return []ed25519.PublicKey{public} }
	f.Fuzz(func(t *testing.T, b []byte) {
		Signers(b)
		check := func(c *Contents, by ed25519.PublicKey, err error) {
			if err == nil && (!c.Equal(right) || c.Version != right.Version || !by.Equal(public)) {
				t.Errorf("contents that were not signed: %+v by %x", c, by)
			}
		}
		check(Open(b, keys(nil)))
		for _, of := range []digest.Digest{subject.Digest, ""} {
			a := Artifact{Manifest: b, Subject: of, Image: right.Manifest, Chain: right.Chain}
			a.Envelope = func(d v1.Descriptor) ([]byte, error) {
				if d.Digest.Validate() != nil || d.Size < 1 || d.Size > MaxEnvelope {
					t.Errorf("the envelope %s of %d bytes is read", d.Digest, d.Size)
				}
				return sealed, nil
			}
			c, by, err := a.Open(keys)
			check(c, by, err)
			if _, about, wrong := envelopeOf(b); err == nil && (wrong != nil || about != of) {
				t.Errorf("an artifact of %q, not of %q, was opened: %v", about, of, wrong)
			}
			if err != nil && !errors.As(err, new(*RefusedError)) {
				t.Errorf("error %v, want a RefusedError", err)
			}
		}
	})
}

// A list is sorted by the versions that it names. Entries without one come last, in their order.
func TestNewestFirst(t *testing.T) {
	var listed []v1.Descriptor
	for i, version := range []string{"9", "", "10", "x", "2"} {
		listed = append(listed, v1.Descriptor{Size: int64(i),
			Annotations: map[string]string{AnnotationVersion: version}})
	}
	NewestFirst(listed)
	var got []int64
	for _, d := range listed {
		got = append(got, d.Size)
	}
	if want := []int64{2, 0, 4, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAfter(t *testing.T) {
	for _, c := range [][3]int{{1, 0, 1}, {1, 1, 2}, {5, 2, 5}, {2, math.MaxInt, 2}, {2, math.MaxInt - 1, 2}} {
		if got := After(c[0], &Contents{Version: c[1]}); got != c[2] {
			t.Errorf("after %d and %d comes %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
