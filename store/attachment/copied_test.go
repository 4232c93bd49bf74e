package attachment_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/registries/push"
	"lighter/store/attachment"
	"lighter/test/testkit/registrytest"
)

// What skopeo makes of the list under a tag counts: a list without types, or the artifact in place
// of the list. Attaching again puts a list there.
func TestCopiedLists(t *testing.T) {
	r := registrytest.Start(t, false)
	ref, manifest := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	o := attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}}
	attach(t, im, attachment.Place{}, o, "attached")
	one := func(what string) attachment.Found {
		t.Helper()
		all, refused, err := attachment.List(t.Context(), im, attachment.Place{})
		if err != nil || refused != nil || len(all) != 1 {
			t.Fatalf("%s: got %d indexes, %v, %v; want one", what, len(all), refused, err)
		}
		return all[0]
	}
	put := func(which, mediaType string, v any) ocispec.Descriptor {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
		if which == "" {
			which = d.Digest.String()
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
			"http://"+r.Host+"/v2/team/image/manifests/"+which, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", mediaType)
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != http.StatusCreated {
			t.Fatalf("put %s: %+v, %v", which, res, err)
		}
		_ = res.Body.Close()
		return d
	}
	tag := push.ListTag(manifest.Digest)
	other := put("", ocispec.MediaTypeImageManifest, map[string]any{"schemaVersion": 2, "subject": manifest})
	untyped := one("attached").Artifact
	untyped.Annotations = map[string]string{"vnd.lighter.version": "1"}
	put(tag, ocispec.MediaTypeImageIndex, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{other, untyped}})
	one("a list without types")
	attach(t, im, attachment.Place{}, o, "unchanged")

	m, err := im.From.Manifest(t.Context(), untyped.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	put(tag, m.MediaType, json.RawMessage(m.Bytes))
	if got := one("the artifact in place of the list").Artifact.Digest; got != untyped.Digest {
		t.Errorf("found %s, want %s", got, untyped.Digest)
	}
	attach(t, im, attachment.Place{}, o, "unchanged")
	o.Recordings = recorded()
	attach(t, im, attachment.Place{}, o, "replaced")
	if v := one("attached again").Contents.Version; v != 2 {
		t.Errorf("version %d, want 2", v)
	}
	if m, err := im.From.Manifest(t.Context(), tag); err != nil || m.MediaType != ocispec.MediaTypeImageIndex {
		t.Errorf("under the list's tag: %+v, %v, want a list", m, err)
	}
}
