package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/imageconfig"
	"lighter/node/layerblob"
	"lighter/wire"
)

// hub has images, and gives their contents.
type hub struct {
	images   []wire.Image
	contents map[string]imageconfig.Image // by manifest
	away     error
	hangs    bool  // requests for one image are not answered
	broken   error // of the contents that are missing
	used     map[string]bool
	fetched  atomic.Int32
	schema   int // of further images
	registry *registry
}

func (h *hub) AllImages(context.Context, int64) ([]wire.Image, error) { return h.images, h.away }

func (h *hub) Manifest(context.Context, string) (*wire.Manifest, error) {
	return &wire.Manifest{LayerBytes: []int64{1024, 2048}}, h.away
}

func (h *hub) Image(ctx context.Context, i wire.Image) (imageconfig.Image, error) {
	h.fetched.Add(1)
	if h.hangs {
		<-ctx.Done()
		return imageconfig.Image{}, ctx.Err()
	}
	all, ok := h.contents[i.Digest]
	if !ok {
		return all, h.broken
	}
	return all, h.away
}

// add adds an image of two layers under a name. Images with the same upper layer are the same.
func (h *hub) add(t *testing.T, name, upper string, repositories ...string) wire.Image {
	t.Helper()
	layers := []digest.Digest{digest.FromString("lower"), digest.FromString(upper)}
	config, err := json.Marshal(v1.Image{RootFS: v1.RootFS{Type: "layers", DiffIDs: layers}})
	if err != nil {
		t.Fatal(err)
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: h.schema}, Config: v1.Descriptor{
		MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config)}}
	for _, layer := range layers {
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: layer + "0",
			Size: int64(len(h.registry.blobs[layer.String()+"0"]))})
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := wire.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	image := wire.Image{Name: name, Digest: digest.FromBytes(manifest).String(), State: wire.StateReady,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Chain: identity.ChainID(layers).String()}
	h.contents[image.Digest] = imageconfig.Image{Manifest: manifest, Config: config,
		Repositories: append([]string{ref.NamedRepository()}, repositories...)}
	h.images = slices.DeleteFunc(h.images, func(i wire.Image) bool { return i.Name == name })
	h.images = append(h.images, image)
	slices.SortFunc(h.images, func(a, b wire.Image) int { return strings.Compare(a.Name, b.Name) })
	return image
}

func newHub() *hub {
	return &hub{contents: map[string]imageconfig.Image{}, used: map[string]bool{}, schema: 2,
		broken: errors.New("no contents"), registry: &registry{blobs: map[string][]byte{}}}
}

func (h *hub) open(t *testing.T, dir string, patterns ...string) *Store {
	t.Helper()
	if patterns == nil {
		patterns = []string{"**"}
	}
	log := slog.New(slog.DiscardHandler)
	s, err := Open(Config{Dir: dir, Patterns: patterns, Refresh: time.Hour, Hub: h, Contents: h,
		Layers: &layerblob.Reader{Statements: h.registry, Hub: h.registry, Log: log},
		Used:   func() map[string]bool { return h.used }, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// listed returns the names of the images in images.json, and the number of layers in layers.json.
func listed(t *testing.T, dir string) (names []string, layers int) {
	t.Helper()
	var images []image
	var all []layer
	for file, into := range map[string]any{imagesFile(dir): &images, layersFile(dir): &all} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range images {
		names = append(names, i.Names...)
		if len(i.Names) == 0 {
			t.Errorf("image %s has no name", i.ID)
		}
		if err := checkImage(dir, &i); err != nil {
			t.Error(err)
		}
	}
	for _, y := range all {
		target, err := os.Readlink(linkFile(dir, linkOf(y.ID)))
		if err != nil || target != filepath.Join("..", y.ID, "diff") {
			t.Errorf("layer %s: link %q, %v", y.ID, target, err)
		}
		if _, err := os.Stat(filepath.Join(layerDir(dir, y.ID), "empty")); err != nil {
			t.Error(err)
		}
		target, err = os.Readlink(splitFile(dir, y.ID))
		if err != nil || target != filepath.Join(Trees(dir), y.ID+splitSuffix) {
			t.Errorf("layer %s: file of tar-split %q, %v", y.ID, target, err)
		}
		target, err = os.Readlink(filepath.Join(layerDir(dir, y.ID), "diff"))
		if err != nil || !filepath.IsAbs(target) {
			t.Errorf("layer %s: diff %q, %v; want an absolute link", y.ID, target, err)
		}
	}
	slices.Sort(names)
	return names, len(all)
}

func expect(t *testing.T, dir string, layers int, names ...string) {
	t.Helper()
	gotNames, gotLayers := listed(t, dir)
	if !slices.Equal(gotNames, names) || gotLayers != layers {
		t.Errorf("got names %q and %d layers, want %q and %d", gotNames, gotLayers, names, layers)
	}
}

func update(t *testing.T, s *Store) {
	t.Helper()
	if err := s.update(t.Context()); err != nil {
		t.Error(err)
	}
}

// Layers have the IDs that c/image gives them, and the layers of two images are shared.
func TestList(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	h.add(t, "reg.example.org/a:1", "a")
	h.add(t, "reg.example.org/a:2", "a")
	h.add(t, "tools/b:1", "b", "hub.test:5000/tools/b")
	s := h.open(t, dir)
	expect(t, dir, 0)
	update(t, s)
	expect(t, dir, 3, "hub.test:5000/tools/b:1", "localhost/tools/b:1", "reg.example.org/a:1", "reg.example.org/a:2")
	lower, upper := digest.FromString("lower").Encoded(), digest.FromString("a").Encoded()
	if _, err := os.Stat(layerDir(dir, digest.FromString(lower+"+"+upper).Encoded())); err != nil {
		t.Error(err)
	}
	for _, i := range h.images {
		if !s.HasChain(i.Chain) {
			t.Errorf("%s: its chain has no link", i.Name)
		}
	}
	fetched := h.fetched.Load()
	update(t, s)
	if h.fetched.Load() != fetched {
		t.Error("a second update has fetched known images")
	}
	before := h.open(t, t.TempDir(), "reg.example.org/*")
	update(t, before)
	if names := before.Status(); names.Images != 1 {
		t.Errorf("got %d images with a pattern, want 1", names.Images)
	}
}

// A layer stays when its image is gone from the hub. The image stays if it was used, named by its
// digest.
func TestGone(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	h.add(t, "reg.example.org/a:1", "old")
	used := h.add(t, "reg.example.org/b:1", "used")
	names := []string{"reg.example.org/a:1", "reg.example.org/b@" + used.Digest}
	s := h.open(t, dir)
	update(t, s)
	h.used[used.Chain] = true
	update(t, s)
	clear(h.used)
	h.add(t, "reg.example.org/a:1", "new") // the tag has another image
	h.images = slices.DeleteFunc(h.images, func(i wire.Image) bool { return i.Name == used.Name })
	update(t, s)
	expect(t, dir, 4, names...)
	s = h.open(t, dir)
	update(t, s)
	expect(t, dir, 4, names...)
	if !s.HasChain(used.Chain) {
		t.Error("the link of an image that is gone is gone")
	}
	h.away = errors.New("away")
	if err := s.update(t.Context()); err == nil || s.Status().Away == "" {
		t.Error("a hub that is away is not reported")
	}
	expect(t, dir, 4, names...)
}

// Whatever file is damaged or lost, the store is whole after the next start.
func TestDamage(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	image := h.add(t, "reg.example.org/a:1", "a")
	gone := h.add(t, "reg.example.org/b:1", "b")
	update(t, h.open(t, dir))
	h.images = h.images[:1]
	s := h.open(t, dir)
	update(t, s)
	top := layerID(digest.FromString("lower").Encoded(), digest.FromString("a"))
	config, _, _ := strings.Cut(filepath.Base(imageDir(dir, s.list.Images[0].ID)), "/")
	for _, file := range []string{stateFile(dir), layersFile(dir), imagesFile(dir), layersLock(dir),
		linkFile(dir, linkOf(top)), splitFile(dir, top), filepath.Join(layerDir(dir, top), "diff"),
		filepath.Join(layerDir(dir, top), "link"),
		filepath.Join(imageDir(dir, config), "manifest"), imageDir(dir, config), layerDir(dir, top)} {
		for _, damage := range []func(string) error{os.RemoveAll, func(file string) error {
			return errors.Join(os.RemoveAll(file), os.WriteFile(file, []byte("{"), 0o600))
		}} {
			if err := damage(file); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, config) || strings.HasSuffix(file, top) {
				_ = os.Remove(file) // a file in the place of a directory is not repaired
			}
			s := h.open(t, dir)
			s.check()
			update(t, s)
			expect(t, dir, 3, image.Name)
			if !s.HasChain(gone.Chain) {
				t.Errorf("%s: a layer that is only used here is lost", file)
			}
		}
	}
}

// An image that cannot be described, or that the tools could not read, is reported, and does not
// keep others from the store.
func TestFailure(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	for n := range 3 {
		i := h.add(t, fmt.Sprintf("reg.example.org/%d:1", n), fmt.Sprint(n))
		if n == 0 {
			delete(h.contents, i.Digest)
		}
	}
	h.schema = 1 // with such an image, podman lists none
	h.add(t, "reg.example.org/old:1", "old")
	s := h.open(t, dir)
	if err := s.update(t.Context()); err == nil {
		t.Error("the failure is not reported")
	}
	expect(t, dir, 3, "reg.example.org/1:1", "reg.example.org/2:1")
	if skipped := s.Status().Skipped; skipped != 2 {
		t.Errorf("%d images are skipped, want 2", skipped)
	}
}

// A change is seen in the locks.
func TestLocks(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	s := h.open(t, dir)
	read := func() (text string) {
		for _, file := range []string{layersLock(dir), imagesLock(dir)} {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text += string(b)
		}
		return text
	}
	h.add(t, "reg.example.org/a:1", "a")
	update(t, s)
	one := read()
	if len(one) != 2*writerSize {
		t.Errorf("the locks have %d bytes, want %d", len(one), 2*writerSize)
	}
	update(t, s)
	if read() != one {
		t.Error("the locks have changed, and nothing else has")
	}
	h.add(t, "reg.example.org/b:1", "b")
	update(t, s)
	two := read()
	if two == one || len(two) != len(one) {
		t.Error("the locks have not changed")
	}
	// A daemon that was killed may have changed the lists, and not the locks.
	h.open(t, dir)
	three := read()
	for n := range 2 {
		if lock := n * writerSize; three[lock:lock+writerSize] == two[lock:lock+writerSize] {
			t.Errorf("lock %d has not changed at the start", n)
		}
	}
}
