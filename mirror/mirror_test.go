package mirror

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/index"
	"lighter/format/tree"
	"lighter/wire"
	"lighter/wire/client"
)

// fakeHub is a hub with one image of one layer, which holds an empty directory.
type fakeHub struct {
	key     ed25519.PrivateKey
	layer   wire.LayerInfo
	digest  string            // of its manifest
	objects map[string][]byte // by the ends of their paths
	held    []wire.Held       // reports
}

func newFakeHub(t *testing.T, seed byte, chain string) *fakeHub {
	t.Helper()
	var metadata, whole bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: tree.NewDir(tree.Node{Mode: 0o755}, nil)}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))
	h := &fakeHub{key: key, layer: wire.LayerInfo{Chain: chain, DiffID: chain}, digest: goodManifest}
	statement, err := json.Marshal(index.Sign(h.key, chain, made.ID()))
	if err != nil {
		t.Fatal(err)
	}
	h.objects = map[string][]byte{
		"/key":                                   []byte(h.publicKey() + "\n"),
		wire.TreePath(wire.DefaultDomain, chain): statement,
		wire.IndexPath(wire.DefaultDomain, made.ID()): encoder.EncodeAll(whole.Bytes(), nil),
		wire.LocationsPath(wire.DefaultDomain,
			made.ID()): encoder.EncodeAll(index.NewLocations(made.ID()).Encode(), nil),
	}
	return h
}

func (h *fakeHub) publicKey() string { return index.FormatKey(h.key.Public().(ed25519.PublicKey)) }

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == wire.HeldPath(wire.DefaultDomain):
		var held wire.Held
		_ = json.NewDecoder(req.Body).Decode(&held)
		h.held = append(h.held, held)
		_ = json.NewEncoder(w).Encode(wire.Unknown{})
		return
	case strings.HasPrefix(req.FormValue("name"), "gone"):
		w.WriteHeader(http.StatusNotFound)
		return
	case strings.HasSuffix(req.URL.Path, "/inspect"):
		image := wire.Inspection{Layers: []wire.LayerInfo{h.layer},
			Image: wire.Image{Name: "a:1", Digest: h.digest, State: wire.StateReady}}
		_ = json.NewEncoder(w).Encode([]wire.Inspection{image})
		return
	}
	for path, body := range h.objects {
		if strings.HasSuffix(req.URL.Path, path) {
			_, _ = w.Write(body)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
}

// mirror copies the hub's image into a directory.
func (h *fakeHub) mirror(t *testing.T, dir string, keys ...string) error {
	t.Helper()
	return h.mirrorNames(t, dir, nil, keys...)
}

// mirrorNames does what mirror does, with other names before the image's.
func (h *fakeHub) mirrorNames(t *testing.T, dir string, names []string, keys ...string) error {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	var pinned []ed25519.PublicKey
	for _, key := range keys {
		parsed, err := index.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		pinned = append(pinned, parsed)
	}
	m, err := New(client.Options{URL: server.URL}, dir, pinned, func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Copy(t.Context(), append(names, "a:1"))
	return err
}

var (
	goodChain    = "sha256:" + strings.Repeat("0a", 32)
	goodManifest = "sha256:" + strings.Repeat("0b", 32)
)

// Nothing is written outside of the directory, whatever names the hub gives to its chains and
// whatever links are in the directory.
func TestMirrorWritesBelowItsDirectoryAlone(t *testing.T) {
	outside := func(t *testing.T, top, dir string) {
		t.Helper()
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if path == dir {
				return fs.SkipDir
			}
			if err == nil && !entry.IsDir() {
				t.Errorf("%s was written, want nothing outside of %s", path, dir)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, chain := range []string{
		"../../../../../../home/victim", "sha256:../../../../../../../home/victim", "/home/victim", "key", "",
		"sha256:",
		strings.ToUpper(goodChain), goodChain + "/../../../../../../../home/victim", goodChain + "\n",
	} {
		top := t.TempDir()
		dir := filepath.Join(top, "a/b/c/mirror")
		err := newFakeHub(t, 1, chain).mirror(t, dir)
		if err == nil || !strings.Contains(err.Error(), "chain") {
			t.Errorf("chain %q: got %v, want an error about the chain", chain, err)
		}
		outside(t, top, dir)
	}
	h := newFakeHub(t, 1, goodChain)
	h.layer.DiffID = "../victim"
	if err := h.mirror(t, t.TempDir()); err == nil || !strings.Contains(err.Error(), "../victim") {
		t.Errorf("an invalid diffID: got %v, want an error that names it", err)
	}
	h = newFakeHub(t, 1, goodChain)
	h.digest = "../../../../../victim"
	if err := h.mirror(t, t.TempDir()); err == nil || !strings.Contains(err.Error(), h.digest) {
		t.Errorf("an invalid manifest digest: got %v, want an error that names it", err)
	}

	top := t.TempDir()
	dir := filepath.Join(top, "mirror")
	for _, name := range []string{"mirror/lighter/1/default", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(top, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../../../elsewhere", filepath.Join(dir, "lighter/1/default/trees")); err != nil {
		t.Fatal(err)
	}
	if err := newFakeHub(t, 1, goodChain).mirror(t, dir); err == nil {
		t.Error("a link out of the directory was followed")
	}
	outside(t, top, dir)
}

// A mirror trusts the keys that it was given. Without any, it trusts the key that signed the first
// objects that it copied.
func TestMirrorPinsTheKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mirror")
	first, second := newFakeHub(t, 1, goodChain), newFakeHub(t, 2, goodChain)
	published := func(want *fakeHub) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, wire.KeyPath(wire.DefaultDomain)))
		if err != nil || strings.TrimSpace(string(b)) != want.publicKey() {
			t.Errorf("the mirror has the key %q, want %s: %v", b, want.publicKey(), err)
		}
	}
	refused := func(err error, seen *fakeHub) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "--hub-key "+seen.publicKey()) {
			t.Errorf("another key: got %v, want an error with the flag to give", err)
		}
	}
	liar := newFakeHub(t, 1, goodChain)
	liar.objects["/key"] = []byte(second.publicKey())
	if err := liar.mirror(t, dir); err == nil {
		t.Error("a key that signed nothing was trusted")
	}
	refused(first.mirror(t, dir, second.publicKey()), first)
	for range 2 { // also after a key that signed nothing
		if err := first.mirror(t, dir); err != nil {
			t.Fatal(err)
		}
	}
	published(first)
	refused(second.mirror(t, dir), second)
	published(first)
	refused(second.mirror(t, dir, first.publicKey()), second)
	if err := second.mirror(t, dir, first.publicKey(), second.publicKey()); err != nil {
		t.Errorf("a pinned key: got %v, want no error", err)
	}
	published(second)
	refused(first.mirror(t, dir), first)
	file := filepath.Join(dir, wire.KeyPath(wire.DefaultDomain))
	if err := os.WriteFile(file, []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := second.mirror(t, dir); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("an invalid key file: got %v, want an error that names it", err)
	}
}

// The image statement of a manifest is copied. A hub may have none. One that no trusted key has
// signed is refused.
func TestMirrorOfManifests(t *testing.T) {
	sign := func(signer ed25519.PrivateKey) []byte {
		image := index.SignImage([]ed25519.PrivateKey{signer}, goodManifest, goodChain, []string{"registry.test/a"})
		text, err := json.Marshal(wire.Manifest{Image: image, DiffIDs: []string{goodChain}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	h := newFakeHub(t, 1, goodChain)
	dir := t.TempDir()
	file := filepath.Join(dir, wire.ManifestPath(wire.DefaultDomain, goodManifest))
	if err := h.mirror(t, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the hub has no image statement: got %v, want no file", err)
	}
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32))
	h.objects[wire.ManifestPath(wire.DefaultDomain, goodManifest)] = sign(other)
	if err := h.mirror(t, dir); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("a statement with an unknown key: got %v, want that it is not signed", err)
	}
	h.objects[wire.ManifestPath(wire.DefaultDomain, goodManifest)] = sign(h.key)
	if err := h.mirror(t, dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "registry.test/a") {
		t.Errorf("the mirror has %q, %v; want the image statement", b, err)
	}
}

// If the hub does not have a name, the other names are still copied, and the mirror still reports
// to the hub. The error lists all names that the hub does not have.
func TestMirrorOfARemovedImage(t *testing.T) {
	h := newFakeHub(t, 1, goodChain)
	dir := t.TempDir()
	err := h.mirrorNames(t, dir, []string{"gone:1", "gone:2"})
	if err == nil || !strings.Contains(err.Error(), "gone:1") || !strings.Contains(err.Error(), "gone:2") ||
		strings.Contains(err.Error(), "a:1") {
		t.Errorf("error %v, want one with the two names that are gone", err)
	}
	if len(h.held) != 1 || len(h.held[0].Trees) != 1 {
		t.Errorf("reports %+v, want one with the tree of the image", h.held)
	}
	if err := h.mirror(t, dir); err != nil || len(h.held) != 2 {
		t.Errorf("a later run: %v, %d reports, want two", err, len(h.held))
	}
}
