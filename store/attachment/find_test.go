package attachment_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/store/attachment"
	"lighter/store/registry"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// What the registry has lost of an index is said, and made again. So is a whole index of which only
// the list has been copied.
func TestLostParts(t *testing.T) {
	r := registrytest.Start(t, false)
	ref, manifest := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	o := attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}, Recordings: recorded()}
	attach(t, im, attachment.Place{}, o, "attached")
	remove := func(path string) {
		t.Helper()
		url := "http://" + r.Host + "/v2/team/image/" + path
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != http.StatusAccepted {
			t.Fatalf("delete %s: %+v, %v", path, res, err)
		}
		_ = res.Body.Close()
	}
	for _, blob := range []func(c *attached.Contents) digest.Digest{
		func(c *attached.Contents) digest.Digest { return c.Index.Digest },
		func(c *attached.Contents) digest.Digest { return c.Tables[1].Digest },
		func(c *attached.Contents) digest.Digest { return c.Packs[0].Blob.Digest },
	} {
		all, refused, err := attachment.List(t.Context(), im, attachment.Place{})
		if err != nil || refused != nil || len(all) != 1 {
			t.Fatal(all, refused, err)
		}
		lost := blob(all[0].Contents)
		remove("blobs/" + lost.String())
		_, refused, err = attachment.List(t.Context(), im, attachment.Place{})
		if err != nil || refused == nil || !strings.Contains(refused.Error(), lost.String()) {
			t.Errorf("listed: %v, %v, want that blob %s is lost", refused, err, lost)
		}
		again := attach(t, im, attachment.Place{}, o, "replaced")
		if len(again.Lost) != 1 || !strings.Contains(again.Lost[0], lost.String()) {
			t.Errorf("attached again: %q was lost, want blob %s", again.Lost, lost)
		}
		if all, refused, err = attachment.List(t.Context(), im, attachment.Place{}); err != nil || refused != nil {
			t.Fatal(all, refused, err)
		}
		check(t, im, all[0])
		attach(t, im, attachment.Place{}, attachment.Options{Keys: o.Keys}, "unchanged")
	}
	all, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	artifact := all[0].Artifact.Digest.String()
	remove("manifests/" + artifact)
	again := attach(t, im, attachment.Place{}, o, "attached")
	if len(again.Lost) != 1 || !strings.Contains(again.Lost[0], artifact) {
		t.Errorf("attached to %s: %q was lost, want artifact %s", manifest.Digest, again.Lost, artifact)
	}
}

// Only what a known key has signed for exactly this image is found.
func TestFindRefuses(t *testing.T) {
	r := registrytest.Start(t, false)
	ref, _ := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	right, other := keyOf(1), keyOf(2)
	attach(t, im, attachment.Place{}, attachment.Options{Keys: []ed25519.PrivateKey{other}}, "attached")
	_, refused, err := attachment.Find(t.Context(), im.From, im.Manifest.Digest, im.Chain(), nil,
		attachment.Trust{Keys: []ed25519.PublicKey{publicOf(right)}})
	if err != nil || !errors.Is(refused, attached.ErrNotSigned) {
		t.Errorf("an index of another key: %v, %v", refused, err)
	}
	_, refused, err = attachment.Find(t.Context(), im.From, im.Manifest.Digest, digest.FromString("x").String(), nil,
		attachment.Trust{Keys: []ed25519.PublicKey{publicOf(other)}})
	if err != nil || refused == nil || !strings.Contains(refused.Error(), "is the index of manifest") {
		t.Errorf("an index of another chain: %v, %v", refused, err)
	}
	// An envelope that was signed for another image, in an artifact that refers to this one.
	second := filepath.Join(t.TempDir(), "second")
	err = layout.Extend(image(t), second, func(l *layout.Layer) error { return l.File("more", noise(4, 100)) })
	if err != nil {
		t.Fatal(err)
	}
	ref, subject := r.Push(t, second, "team/image:2")
	all, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	m, err := all[0].In.Manifest(t.Context(), all[0].Artifact.Digest.String())
	if err != nil {
		t.Fatal(err)
	}
	to, err := registry.FindDestination(t.Context(), ref, false)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Replace(m.Bytes, []byte(im.Manifest.Digest), []byte(subject.Digest), 1)
	d := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(forged), Size: int64(len(forged))}
	if err := to.Manifest(t.Context(), d, forged); err != nil {
		t.Fatal(err)
	}
	_, refused, err = attachment.List(t.Context(), find(t, ref), attachment.Place{})
	if err != nil || refused == nil || !strings.Contains(refused.Error(), "is the index of manifest") {
		t.Errorf("an index of another image: %v, %v", refused, err)
	}
}

// Several artifacts are looked at at a time. The newest version counts, whichever answer arrives
// first.
func TestFindLooksAtSeveral(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := r.Push(t, image(t), "team/image:1")
	im := find(t, ref)
	const several = 4
	artifacts := map[string]bool{}
	for i := range byte(several) {
		o := attachment.Options{Keys: []ed25519.PrivateKey{keyOf(i + 1)}}
		artifacts[attach(t, im, attachment.Place{}, o, "attached").Artifact] = true
	}
	var begun atomic.Int32
	all := make(chan struct{})
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		_, which, _ := strings.Cut(req.URL.Path, "/manifests/")
		if !artifacts[which] {
			return false
		}
		if begun.Add(1) == several {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(20 * time.Second):
			t.Errorf("%d artifacts are looked at at a time, want %d", begun.Load(), several)
		}
		return false
	})
	found, refused, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || refused != nil || len(found) != several {
		t.Fatalf("found %+v, %v, %v, want %d", found, refused, err, several)
	}
	for i, f := range found {
		if f.Contents.Version != several-i || !f.By.Equal(publicOf(keyOf(byte(several-i)))) {
			t.Errorf("place %d has version %d", i, f.Contents.Version)
		}
	}
}
