package direct

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/node/resolver"
	"lighter/registries"
	"lighter/store"
)

func open(t *testing.T, root string, tables ...string) *Images {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	all, err := registries.New(nil, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(Config{Root: root, Tables: tables, Registries: all, Leftovers: &durable.Leftovers{Log: log},
		Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), all.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// keep publishes a tree with one layer, which is not in any registry.
func keep(t *testing.T, m *Images, name string) (tree, pack chunk.ID) {
	t.Helper()
	tree, pack = chunk.Sum([]byte("tree "+name)), chunk.Sum([]byte("layer "+name))
	fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	b := layer.NewBuilder(pack, 100)
	if _, err := b.Add(layer.Unit{Stored: 4, Codec: layer.Stored,
		Chunks: []layer.Chunk{{ID: chunk.Sum([]byte("text")), Length: 4}}}); err != nil {
		t.Fatal(err)
	}
	layerDigest := digest.NewDigestFromEncoded(digest.SHA256, pack.String())
	im := image{Places: []place{{Repository: "registry.test/a", Manifest: digest.FromString(name)}},
		DiffIDs: []digest.Digest{layerDigest},
		Layers:  []v1.Descriptor{{Digest: layerDigest, Size: 100}}, Format: "tables",
		Tables: []chunk.ID{chunk.Sum([]byte("table"))}}
	text, err := json.Marshal(im)
	if err != nil {
		t.Fatal(err)
	}
	for file, fill := range map[string]func(w io.Writer) error{
		"0":         func(w io.Writer) error { _, err := b.WriteTo(w); return err },
		"image":     func(w io.Writer) error { _, err := w.Write(text); return err },
		"index":     func(w io.Writer) error { _, err := io.WriteString(w, "index of "+name); return err },
		"locations": func(w io.Writer) error { _, err := io.WriteString(w, "locations of "+name); return err },
	} {
		if err := create(filepath.Join(fresh, file), fill); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.kept.publish(tree, fresh, im, nil); err != nil {
		t.Fatal(err)
	}
	return tree, pack
}

// hubs are hubs that have nothing but an index.
type hubs struct {
	Hubs
	asked int
}

func (h *hubs) FetchUnit(context.Context, chunk.Unit, func(store.Answer) error) error {
	h.asked++
	return chunk.ErrNotFound
}

func (h *hubs) Index(_ context.Context, _ chunk.ID, take func(io.Reader) error) error {
	h.asked++
	return take(strings.NewReader("index of the hub"))
}

// What was made is there after a restart, with the same key. A tree that cannot be read stays until
// it is made again. What a crash has left is removed.
func TestKept(t *testing.T) {
	root := t.TempDir()
	m := open(t, root)
	good, pack := keep(t, m, "good")
	bad, _ := keep(t, m, "bad")
	if err := errors.Join(os.WriteFile(m.kept.path(bad, "0"), []byte("damaged"), 0o600),
		os.Mkdir(filepath.Join(m.kept.dir, newPrefix+"1"), 0o700)); err != nil {
		t.Fatal(err)
	}
	again := open(t, root)
	if !again.Key().Equal(m.Key()) {
		t.Error("the key has changed")
	}
	if !again.kept.has(good) || again.kept.has(bad) || len(again.kept.layersOf(pack)) != 1 {
		t.Error("after a restart: want the good tree only")
	}
	if left, err := os.ReadDir(again.kept.dir); err != nil || len(left) != 3 {
		t.Errorf("files %v (%v), want the key and two trees", left, err)
	}
	h := &hubs{}
	s := again.Source(h)
	for tree, want := range map[chunk.ID]string{good: "index of good", bad: "index of the hub"} {
		err := s.Index(t.Context(), tree, func(r io.Reader) error {
			if b, err := io.ReadAll(r); err != nil || string(b) != want {
				t.Errorf("index %q (%v), want %q", b, err, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	current := chunk.Sum([]byte("locations of good"))
	for _, have := range []chunk.ID{current, good, {}} {
		taken := false
		err := s.Locations(t.Context(), good, have, func(io.Reader) error { taken = true; return nil })
		if err != nil || taken != (have != current) {
			t.Errorf("locations for a node that has %s: %v, sent: %t", have.Short(), err, taken)
		}
	}
	for unit, want := range map[chunk.Unit]string{{Pack: pack}: "registry.test", {Pack: bad}: ""} {
		if got := s.Route(unit); got != want {
			t.Errorf("unit %s is requested from %q, want %q", unit, got, want)
		}
	}
	if err := s.FetchUnit(t.Context(), chunk.Unit{Pack: bad}, nil); !errors.Is(err, chunk.ErrNotFound) || h.asked != 2 {
		t.Errorf("a unit of the hub: %v; the hub was asked %d times", err, h.asked)
	}
	if err := s.FetchUnit(t.Context(), chunk.Unit{Pack: pack, N: 7}, nil); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a unit that the layer does not have: %v", err)
	}
	if keep(t, again, "bad"); !again.kept.has(bad) {
		t.Error("a tree that was made again is not there")
	}
	ref := chunk.Ref{ID: good, Unit: chunk.Unit{Pack: pack}}
	if err := s.Fetch(t.Context(), ref, nil); !errors.Is(err, chunk.ErrNotFound) || h.asked != 2 {
		t.Errorf("a chunk of a layer, by its ID: %v; the hub was asked %d times", err, h.asked)
	}
}

// A tree that the node does not have is removed, but not before the node could fetch it.
func TestSweep(t *testing.T) {
	m := open(t, t.TempDir())
	tree, pack := keep(t, m, "a")
	m.kept.sweep(nil)
	if !m.kept.has(tree) {
		t.Fatal("a new tree was removed")
	}
	m.kept.trees[tree].made = time.Now().Add(-2 * graceTime)
	m.kept.sweep([]chunk.ID{tree})
	if !m.kept.has(tree) {
		t.Fatal("a tree of the node was removed")
	}
	m.kept.sweep(nil)
	left, err := os.ReadDir(m.kept.dir)
	if m.kept.has(tree) || len(m.kept.layersOf(pack)) > 0 || err != nil || len(left) != 1 {
		t.Errorf("files %v (%v), want the key only", left, err)
	}
}

// Without a name, and from repositories that are not trusted, nothing is read and nothing answered.
func TestNotTrusted(t *testing.T) {
	m := open(t, t.TempDir(), "registry.test/team/*")
	manifest := "sha256:" + chunk.Sum(nil).String()
	for _, q := range []resolver.Request{{}, {Reference: "registry.test/team/a:1"},
		{Reference: "registry.test/teams/a:1", Pulled: manifest},
		{Reference: "registry.test/team/a/b:1", Pulled: manifest},
		{Reference: "other.test/team/a:1", Pulled: manifest}} {
		if _, err := m.Answerer("tables").Answer(t.Context(), q); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("%+v: %v, want that the image is not known here", q, err)
		}
	}
}

// An image that was pulled from two repositories is read from either. Lower chains of it are known.
func TestPlaces(t *testing.T) {
	root := t.TempDir()
	m := open(t, root)
	tree, pack := keep(t, m, "a")
	_, im, found := m.kept.find(func(*image) bool { return true })
	if !found {
		t.Fatal("the image is not found")
	}
	first := im.Places[0]
	second := place{Repository: "registry.test/b", Manifest: first.Manifest}
	for range 2 {
		other := im
		other.Places = []place{second}
		fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
		if err != nil {
			t.Fatal(err)
		}
		isOther := func(old *image) bool { return m.replaces(&other, old) }
		if err := m.kept.publish(tree, fresh, other, isOther); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []*Images{m, open(t, root)} {
		got := m.kept.repositories(m.kept.layersOf(pack)[0])
		if !slices.Equal(got, []string{first.Repository, second.Repository}) {
			t.Errorf("repositories %v, want those of %v and %v", got, first, second)
		}
	}
	diffIDs := []digest.Digest{digest.FromString("1"), digest.FromString("2"), digest.FromString("3")}
	for n := 1; n <= len(diffIDs); n++ {
		if got := layersOf(diffIDs, identity.ChainID(slices.Clone(diffIDs[:n])).String()); got != n {
			t.Errorf("the chain of %d layers is that of %d", n, got)
		}
	}
	if got := layersOf(diffIDs, diffIDs[1].String()); got != 0 {
		t.Errorf("an unknown chain is that of %d layers", got)
	}
	if _, err := m.Answerer("tables").Tree(t.Context(), diffIDs[1].String()); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("the tree of an unknown chain: %v", err)
	}
	s, err := m.Answerer("tables").Tree(t.Context(), identity.ChainID(slices.Clone(im.DiffIDs)).String())
	if err != nil || s.Tree != tree || s.Verify(s.Chain, []ed25519.PublicKey{m.Key()}) != nil {
		t.Errorf("the tree of the image: %+v, %v", s, err)
	}
}

// Images that cannot be opened keep nothing from the hubs.
func TestClosed(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "direct"), 0o700),
		os.WriteFile(filepath.Join(root, "direct/key"), []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	config := Config{Root: root, Tables: []string{"**"}, Leftovers: &durable.Leftovers{Log: log}, Log: log}
	const want = "direct/key has 5 bytes, want 32: remove it"
	if _, err := Open(config); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a short key: %v", err)
	}
	m := Closed(config)
	if m.Key() != nil {
		t.Error("there is a key")
	}
	q := resolver.Request{Reference: "registry.test/a:1", Pulled: "sha256:" + chunk.Sum(nil).String()}
	if _, err := m.Answerer("tables").Answer(t.Context(), q); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an answer: %v", err)
	}
	h := &hubs{}
	err := m.Source(h).Index(t.Context(), chunk.Sum(nil), func(io.Reader) error { return nil })
	if err != nil || h.asked != 1 {
		t.Errorf("an index of the hub: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// A tree is pulled from a second place while a chunk of it is looked for.
func TestLookupDuringAnotherPull(t *testing.T) {
	m := open(t, t.TempDir())
	id, pack := keep(t, m, "good")
	l := m.kept.layersOf(pack)[0]
	im := *m.kept.imageOf(id)
	done, fresh := make(chan error), t.TempDir()
	go func() {
		im.Places = []place{{Repository: "registry.test/b", Manifest: im.Places[0].Manifest}}
		done <- m.kept.publish(id, fresh, im, func(*image) bool { return false })
	}()
	_, _ = l.of.inLayers(chunk.ID{1})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// An image that an earlier version has kept has no config: it is read when the image is pulled
// again.
func TestImageWithoutConfig(t *testing.T) {
	f, root := startFake(t), t.TempDir()
	p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("good"))
	before := f.images(t, root, []string{"**"}, nil)
	tree, err := f.ask(t, before, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, known := before.Config(tree); !known {
		t.Error("a new image has no config")
	}
	path := before.kept.path(tree, "image")
	var fields map[string]any
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	delete(fields, "config")
	if err == nil {
		b, err = json.Marshal(fields)
	}
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, pulled := range []bool{false, true} { // after the pull, also after another restart
		m := f.images(t, root, []string{"**"}, nil)
		if _, known := m.Config(tree); known != pulled {
			t.Errorf("pulled again: %t, but its config is known: %t", pulled, known)
		}
		if again, err := f.ask(t, m, p); err != nil || again != tree {
			t.Errorf("got tree %s, %v; want %s", again.Short(), err, tree.Short())
		}
		if _, known := m.Config(tree); !known {
			t.Error("the config is not known after the pull")
		}
	}
}
