package attached

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// An artifact has the index of an image if it refers to the image, or has a tag, and a believed key
// has signed contents about this image.
func TestArtifact(t *testing.T) {
	key, public := keyOf(1)
	_, other := keyOf(2)
	sealed := seal(t, sample(), key)
	subject := blob(v1.MediaTypeImageManifest, "manifest")
	manifest := func(of v1.Descriptor) []byte {
		t.Helper()
		b, err := Manifest(sample(), sealed, of)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	right := Artifact{Manifest: manifest(subject), Subject: subject.Digest, Image: subject.Digest,
		Chain: sample().Chain}
	tagged := Artifact{Manifest: manifest(v1.Descriptor{}), Image: subject.Digest, Chain: sample().Chain}
	with := func(change func(a *Artifact)) *Artifact { a := right; change(&a); return &a }
	for what, c := range map[string]struct {
		artifact *Artifact
		key      ed25519.PublicKey
		isRight  bool
	}{
		"right":                {&right, public, true},
		"another key":          {&right, other, false},
		"another image":        {with(func(a *Artifact) { a.Image = digest.FromString("x") }), public, false},
		"another chain":        {with(func(a *Artifact) { a.Chain = digest.FromString("x").String() }), public, false},
		"another subject":      {with(func(a *Artifact) { a.Subject = digest.FromString("x") }), public, false},
		"a tag":                {&tagged, public, true},
		"a tag, and a subject": {with(func(a *Artifact) { a.Subject = "" }), public, false},
		"something else":       {with(func(a *Artifact) { a.Manifest = []byte("{}") }), public, false},
	} {
		got, by, err := c.artifact.Open(func(envelope []byte) []ed25519.PublicKey {
			if !bytes.Equal(envelope, sealed) {
				t.Errorf("%s: asked for the keys of %q", what, envelope)
			}
			return []ed25519.PublicKey{c.key}
		})
		if isRight := err == nil && got.Equal(sample()) && by.Equal(public); isRight != c.isRight ||
			err != nil && !errors.As(err, new(*RefusedError)) {
			t.Errorf("%s: %+v, %v, want that it is right: %t", what, got, err, c.isRight)
		}
	}

	// An envelope that the manifest does not have is read. Trouble with that is no refusal.
	var m v1.Manifest
	if err := json.Unmarshal(right.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	m.Layers[0].Data = nil
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, trouble := range []error{nil, errors.New("the connection broke")} {
		a := with(func(a *Artifact) { a.Manifest = b })
		a.Envelope = func(d v1.Descriptor) ([]byte, error) {
			if d.Digest != digest.FromBytes(sealed) {
				t.Errorf("blob %s was read", d.Digest)
			}
			return sealed, trouble
		}
		_, _, err := a.Open(func([]byte) []ed25519.PublicKey { return []ed25519.PublicKey{public} })
		if !errors.Is(err, trouble) || errors.As(err, new(*RefusedError)) {
			t.Errorf("got %v, want %v", err, trouble)
		}
	}
}
