package hub_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"

	"lighter/wire"

	"lighter/hub"
)

// repositoriesOf requests a manifest's statement, verifies it, and returns its repositories.
func (h *testHub) repositoriesOf(manifest string) []string {
	h.t.Helper()
	said, err := h.client.Manifest(h.t.Context(), manifest)
	if err != nil {
		h.t.Fatal(err)
	}
	keys := h.PublicKeys()
	if err := errors.Join(said.Image.Verify(manifest, keys), said.Statement.Verify(said.Image.Chain,
		keys)); err != nil {
		h.t.Fatal(err)
	}
	return said.Image.Repositories
}

// wantRepositories fails the test unless the statement about a manifest has these repositories.
func (h *testHub) wantRepositories(manifest string, want ...string) {
	h.t.Helper()
	slices.Sort(want)
	if got := h.repositoriesOf(manifest); !slices.Equal(got, want) {
		h.t.Errorf("repositories of manifest %s: %q, want %q", manifest, got, want)
	}
}

// The statement about a manifest is signed, and names the chain and the repositories of all names
// and sources of the image.
func TestManifestsOfImages(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	repository := strings.TrimSuffix(r.name(), ":1")
	last, err := h.add(wire.Add{Source: r.source(), Name: "registry.test:5000/renamed:1"})
	if err != nil {
		t.Fatal(err)
	}
	manifest := last.Images[0].Digest
	h.wantRepositories(manifest, repository, "registry.test:5000/renamed")
	said, err := h.client.Manifest(t.Context(), manifest)
	if want := []string{digest.FromBytes(lowerTar).String(), digest.FromBytes(upperTar).String()}; err != nil ||
		!slices.Equal(said.DiffIDs, want) ||
		said.Image.Chain != last.Images[0].Chain || said.Statement.Tree.String() != last.Images[0].Tree {
		t.Errorf("statement %+v, %v, want the diffIDs %q and the image's chain and tree", said, err, want)
	}

	// The image is added from another registry under the same name, which copies no blob, and from
	// the first one under its default name, and pushed.
	again := startRegistry(t, image(lowerTar, upperTar))
	other := strings.TrimSuffix(again.name(), ":1")
	for _, add := range []wire.Add{{Source: again.source(), Name: "registry.test:5000/renamed:1"},
		{Source: r.source()}} {
		if _, err := h.add(add); err != nil {
			t.Fatal(err)
		}
	}
	h.pushReady("pushed/here:1", image(lowerTar, upperTar))
	all := []string{repository, other, "registry.test:5000/renamed", "pushed/here"}
	h.wantRepositories(manifest, all...)

	// The repositories are the same after a restart. A repository is dropped with its last name.
	h = h.restart()
	h.wantRepositories(manifest, all...)
	if err := h.client.Remove(t.Context(), "registry.test:5000/renamed:1"); err != nil {
		t.Fatal(err)
	}
	h.wantRepositories(manifest, repository, "pushed/here")
	for _, name := range []string{r.name(), "pushed/here:1"} {
		if err := h.client.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.client.Manifest(t.Context(), manifest); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a removed image: %v, want not found", err)
	}
	h.pushReady("pushed/here:1", image(lowerTar, upperTar))
	h.wantRepositories(manifest, "pushed/here")
}

// Manifests of failed and missing images, and invalid digests, are not found.
func TestUnknownManifests(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	broken := image(lowerTar)
	broken.layers[0].diffID = digest.FromString("another")
	failed := h.push("broken:1", broken)
	h.settled("broken:1")
	for _, path := range []string{failed.String(), digest.FromString("x").String(), "sha256:zz", "x"} {
		if status, body, header := h.do("GET", wire.Prefix+"/"+wire.DefaultDomain+"/manifests/"+path,
			nil); status != http.StatusNotFound || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s, %v, want 404 and Cache-Control no-store", path, status, body, header)
		}
	}
}

// The statement about a manifest names each repository of the hub's own registry under all
// configured registry_hosts.
func TestManifestsOfTheHubsRegistry(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.RegistryHosts = []string{"hub.test", "hub.test:5000"} })
	r := startRegistry(t, image(lowerTar))
	last, err := h.add(wire.Add{Source: r.source()})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := wire.ParseName(r.name())
	if err != nil {
		t.Fatal(err)
	}
	h.wantRepositories(last.Images[0].Digest, strings.TrimSuffix(r.name(), ":1"), "hub.test/"+ref.Repository,
		"hub.test:5000/"+ref.Repository)
	for _, host := range []string{"", "hub.test/", "https://hub.test", "Hub.test", "hub.test:", "hub.test:x", "a b"} {
		c := hub.DefaultConfig()
		if c.RegistryHosts = []string{host}; c.Check() == nil {
			t.Errorf("registry_hosts %q is accepted, want an error", host)
		}
	}
}

// A mirror has the hub's statements about the manifests of its images.
func TestMirrorHasManifests(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for name, tar := range map[string][]byte{"a:1": lowerTar, "b:1": upperTar} {
		h.pushReady(name, image(tar))
	}
	dir := filepath.Join(t.TempDir(), "mirror")
	h.mirror(dir, "a:1")
	mirror := serveFiles(t, dir)
	a, b := h.ready("a:1"), h.ready("b:1")
	said, err := mirror.Manifest(t.Context(), a.Digest)
	if err != nil || said.Image.Verify(a.Digest, h.PublicKeys()) != nil || said.Image.Chain != a.Chain ||
		said.Statement == nil {
		t.Errorf("the mirror answers %+v, %v, want the hub's statements", said, err)
	}
	if _, err := mirror.Manifest(t.Context(), b.Digest); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an image that was not mirrored: %v, want not found", err)
	}
}
